"""Which shard owns which partition. A map is a value: it never changes, a new assignment has a new
epoch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.api import spec
from services.api.resources import Resources
from services.kit.discovery import Run
from services.kit.errors import InvalidInput

MAX_PARTITIONS = 1 << 16


@dataclasses.dataclass(frozen=True, eq=False)
class ShardMap:
    """`owners[p]` is the shard of partition p; the number of partitions is a power of two."""

    epoch: int
    owners: NDArray[np.uint16]  # (partitions,)
    shards: int

    def __post_init__(self) -> None:
        count = len(self.owners)
        if count == 0 or count > MAX_PARTITIONS or count & (count - 1):
            raise InvalidInput(
                f"owners has {count} entries; partitions are a power of two <= {MAX_PARTITIONS}"
            )
        if not 1 <= self.shards <= MAX_PARTITIONS:
            raise InvalidInput(f"shards is {self.shards}, must be in 1..{MAX_PARTITIONS}")
        top = int(self.owners.max())
        if top >= self.shards:
            raise InvalidInput(f"owners names shard {top}, there are {self.shards} shards")

    @property
    def partitions(self) -> int:
        """Number of partitions of the job."""
        return len(self.owners)

    def partitions_of(self, shard: int) -> list[int]:
        """Partitions `shard` owns, ascending; may be empty when there are more shards than
        partitions.
        """
        return [int(p) for p in np.flatnonzero(self.owners == shard)]

    @classmethod
    def even(cls, partitions: int, shards: int, epoch: int = 1) -> ShardMap:
        """Contiguous ranges whose sizes differ by at most one."""
        owners = np.arange(max(partitions, 0), dtype=np.int64) * shards // max(partitions, 1)
        return cls(epoch, owners.astype(np.uint16), shards)

    @classmethod
    def of(cls, epoch: int, owners: Sequence[int], shards: int) -> ShardMap:
        """From plain integers. Raises InvalidInput for an owner outside 0..shards-1."""
        wrong = [o for o in owners if not 0 <= o < shards]
        if wrong:
            raise InvalidInput(f"owners names shard {wrong[0]}, there are {shards} shards")
        return cls(epoch, np.asarray(owners, dtype=np.uint16), shards)

    @classmethod
    def from_run(cls, run: Run) -> ShardMap:
        """The map of a job's attempt."""
        return cls.of(run.epoch, run.owners, spec.validate(run.spec).resources.sparse_ps)


def embedded_blocks(resources: Resources) -> int:
    """Dense blocks in trainers' processes: block i is in trainer i."""
    return min(resources.dense_ps, resources.trainers) if resources.embedded else 0
