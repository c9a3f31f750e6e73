"""Lanes: how numbered rows are shared out, so that any number of trainers can go on anywhere.

The rows are cut into stripes of batch_size rows; stripe s belongs to lane s % 60. Trainer r owns
the lanes l with l % trainers == r and hands out their stripes in file order. A lane's position is
(epoch, next stripe); 60 is divisible by 1..6, 10, 12, 15, 20 and 30, so these numbers of trainers
get equal shares.
"""

from __future__ import annotations

from collections.abc import Mapping

from ps_service.ranges import place_of
from services.api.manifest import PositionEntry
from services.kit.errors import InvalidInput
from trainer_service.sources import Claimer, at_the_start

LANES = 60


class Lanes:
    """Positions of the lanes one trainer owns. `names` are the lanes of the whole job.

    What `take` answers depends on the stripe alone, so whoever hands a stripe out names the same
    range.
    """

    def __init__(
        self,
        names: list[str],
        rank: int,
        trainers: int,
        epochs: int,
        resume: Mapping[str, PositionEntry],
        claim: Claimer = at_the_start,
    ) -> None:
        unknown = sorted(resume.keys() - set(names))
        if unknown:
            raise InvalidInput(
                f"position of {unknown[0]!r} doesn't belong to this source; "
                f"it has {names[0]}…{names[-1]}"
            )
        self._names = names
        self._epochs = epochs
        self._stripes: int | None = None
        self._next: dict[int, tuple[int, int]] = {}
        fresh = {
            name: PositionEntry(partition=name, major=0, minor=lane)
            for lane, name in enumerate(names)
        }
        starts = [resume.get(name, fresh[name]) for name in names[rank::trainers]]
        claimed = claim(starts)
        self.starts = {name: claimed[name].position for name in names[rank::trainers]}
        for lane in range(rank, len(names), trainers):
            self._next[lane] = place_of(self.starts[names[lane]])

    def learn(self, stripes: int) -> None:
        """Tells how many stripes an epoch has; lanes at its end move on to the next one."""
        self._stripes = stripes
        self._next = {lane: self._normal(lane, *at) for lane, at in self._next.items()}

    def first(self, epoch: int) -> int | None:
        """The lowest stripe that some lane still wants in `epoch`; None when all are beyond the
        epoch.
        """
        wanted = [
            stripe if at == epoch else lane
            for lane, (at, stripe) in self._next.items()
            if at <= epoch
        ]
        return min(wanted, default=None)

    def wants(self, epoch: int, stripe: int) -> bool:
        """Whether this trainer has to hand out the stripe."""
        at = self._next.get(stripe % len(self._names))
        return at is not None and (epoch, stripe) >= at

    def take(self, epoch: int, stripe: int) -> PositionEntry:
        """Moves the stripe's lane behind it; returns the place there."""
        lane, after = stripe % len(self._names), stripe + len(self._names)
        self._next[lane] = self._normal(lane, epoch, after)
        return PositionEntry(partition=self._names[lane], major=epoch, minor=after)

    def positions(self) -> list[PositionEntry]:
        """All owned lanes."""
        return [self._entry(lane) for lane in self._next]

    def _normal(self, lane: int, epoch: int, stripe: int) -> tuple[int, int]:
        if self._stripes is None or stripe < self._stripes:
            return epoch, stripe
        if lane >= self._stripes:  # an epoch has nothing for this lane
            return self._epochs, lane
        return epoch + 1, lane

    def _entry(self, lane: int) -> PositionEntry:
        epoch, stripe = self._next[lane]
        return PositionEntry(partition=self._names[lane], major=epoch, minor=stripe)


def lane_names() -> list[str]:
    """Source partitions of a training job."""
    return [f"lane-{lane:02d}" for lane in range(LANES)]
