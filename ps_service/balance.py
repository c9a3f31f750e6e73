"""How evenly load lies on partitions and shards, and which partitions to move to even it out. Pure:
nothing here measures or moves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ps_service.sharding import ShardMap
from services.kit.errors import InvalidInput


@dataclasses.dataclass(frozen=True)
class Spread:
    """Of some partitions' load."""

    peak_to_mean: float  # load of the busiest over the mean; 1 is even
    top_share: float  # of the busiest in the whole


@dataclasses.dataclass(frozen=True)
class Move:
    """One partition goes from one shard to another."""

    partition: int
    source: int
    target: int


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Of a plan."""

    most_moves: int = 16  # each copies a partition's rows
    slack: float = 0.05  # shards up to this share above the mean are left alone

    def __post_init__(self) -> None:
        if self.most_moves < 0:
            raise InvalidInput(f"most_moves is {self.most_moves}, must be >= 0")
        if not self.slack >= 0:
            raise InvalidInput(f"slack is {self.slack}, must be >= 0")


def spread(loads: NDArray[np.uint64]) -> Spread | None:
    """None when there is no load. `loads` (n,) may have any unit."""
    total = int(loads.sum(dtype=np.uint64))
    if total == 0:
        return None
    share = int(loads.max()) / total
    return Spread(peak_to_mean=share * len(loads), top_share=share)


def plan(loads: Sequence[int], shards: ShardMap, bounds: Bounds | None = None) -> list[Move]:
    """Moves, in order, that even out the load of the shards; a function of its arguments only.

    `loads` (P,) are those of the partitions, in any unit, e.g. keys named in a minute. Each move
    takes one partition from the busiest shard to the idlest, that which halves their difference
    best, and leaves the idlest below what the busiest had: so no prefix of the plan makes the
    busiest shard busier. A partition moves once at most. Ties go to the lowest number.

    The plan ends within the slack, at the most moves, or when no partition of the busiest shard is
    small enough: a single hot partition is not to be helped by moving. Raises InvalidInput for
    loads that are negative or of another number than the partitions.
    """
    limits = bounds or Bounds()
    _check(loads, shards.partitions)
    of_shard = [0] * shards.shards
    movable: list[list[int]] = [[] for _ in of_shard]
    for partition, owner in enumerate(shards.owners.tolist()):
        of_shard[owner] += loads[partition]
        if loads[partition] > 0:
            movable[owner].append(partition)
    enough = (1 + limits.slack) * sum(of_shard) / len(of_shard)
    moves: list[Move] = []
    while len(moves) < limits.most_moves:
        busiest, idlest = of_shard.index(max(of_shard)), of_shard.index(min(of_shard))
        gap = of_shard[busiest] - of_shard[idlest]
        fitting = [p for p in movable[busiest] if loads[p] < gap]
        if of_shard[busiest] <= enough or not fitting:
            break
        partition = min(fitting, key=lambda p: (abs(gap - 2 * loads[p]), p))
        movable[busiest].remove(partition)
        of_shard[busiest] -= loads[partition]
        of_shard[idlest] += loads[partition]
        moves.append(Move(partition, busiest, idlest))
    return moves


def _check(loads: Sequence[int], partitions: int) -> None:
    if len(loads) != partitions:
        raise InvalidInput(f"loads has {len(loads)} entries, there are {partitions} partitions")
    negative = next((p for p, load in enumerate(loads) if load < 0), None)
    if negative is not None:
        raise InvalidInput(f"loads: partition {negative} has {loads[negative]}, must be >= 0")
