"""Which samples are trained: the next unread place of every source partition this trainer owns.

A position moves only after both pushes of its batch are acknowledged, so the positions a checkpoint
records are exactly the samples whose gradients its rows hold. Batches that were read ahead don't
count. What `major` and `minor` mean is the source's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ps_service.ranges import Place, place_of
from services.api.manifest import Manifest, PositionEntry


def from_manifest(manifest: Manifest) -> dict[str, PositionEntry]:
    """Where every partition of the job goes on, for `sources.open_training`."""
    return {entry.partition: entry for entry in manifest.positions}


class Positions:
    """Positions by partition. Used by the loop's thread only."""

    def __init__(
        self, start: Iterable[PositionEntry], ahead: Mapping[str, Place] | None = None
    ) -> None:
        """`start`: where each owned partition begins, taken before the first batch is read.
        `ahead`: how far some server has applied it beyond that.
        """
        self._entries = {entry.partition: entry for entry in start}
        self._ahead = dict(ahead or {})

    @property
    def settled(self) -> bool:
        """Whether all servers hold the same rows of these partitions. Until a trainer that took
        over has sent again what the one before it had sent to some servers only, they don't.
        """
        return not self._ahead

    def advance(self, entry: PositionEntry) -> None:
        """The batch before `entry` is trained."""
        self._entries[entry.partition] = entry
        if place_of(entry) >= self._ahead.get(entry.partition, place_of(entry)):
            self._ahead.pop(entry.partition, None)

    def entries(self) -> tuple[PositionEntry, ...]:
        """A copy, by partition name."""
        return tuple(self._entries[name] for name in sorted(self._entries))
