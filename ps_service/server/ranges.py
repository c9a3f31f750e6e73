"""RangeTable: how far a server has applied each source partition, so that every range of rows is
applied once, whoever sends it and however often.

One entry per source partition: the place behind the last applied row, and the incarnation that
claimed the partition last. A range that begins at that place is new; one that ends at or before it
is a duplicate; any other would skip or double rows and is refused. Knows nothing of tensors, ranks
or gRPC. The argument why this suffices is in docs/exactly-once.md.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import prometheus_client

from ps_service.ranges import BatchRange, Place, place_of, position_from_proto, position_to_proto
from ps_service.server.barrier import Fenced
from services.api.manifest import PositionEntry
from services.kit.errors import Conflict, Damaged
from services.wire import ps_pb2

Result = TypeVar("Result")


@dataclasses.dataclass
class _Entry:
    """Fields change only under `lock`, which is held while a range of the partition is applied."""

    position: PositionEntry
    samples: int = 0  # rows applied since the table was made
    incarnation: int = 0  # that claimed the partition last
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)


class RangePush(Protocol):
    """A push, as far as this module looks at it."""

    @property
    def range(self) -> BatchRange | None:
        """None: a step without rows."""

    @property
    def samples(self) -> int:
        """Rows of the range."""

    @property
    def incarnation(self) -> int:
        """Who sends it."""


class RangeTable:
    """Thread-safe; ranges of different partitions don't wait for each other."""

    def __init__(
        self, outcomes: prometheus_client.Counter, restored: Iterable[PositionEntry] = ()
    ) -> None:
        """`outcomes` counts ranges by its label; `restored` are the positions of the manifest the
        server started from.
        """
        self._outcomes = outcomes
        self._guard = threading.Lock()  # of the dict, not of its entries
        self._entries = {entry.partition: _Entry(entry) for entry in restored}

    def claim(
        self, starts: Iterable[PositionEntry], incarnation: int
    ) -> list[ps_pb2.ClaimReply.Applied]:
        """From now on only `incarnation` sends ranges of these partitions. How far each is
        applied: its start, if nothing of it was yet.

        Raises Fenced when a later incarnation has claimed one of them.
        """
        applied = []
        for start in starts:
            with self._guard:
                entry = self._entries.setdefault(start.partition, _Entry(start))
            with entry.lock:
                self._check_owner(entry, incarnation)
                entry.incarnation = incarnation
                applied.append(
                    ps_pb2.ClaimReply.Applied(
                        next=position_to_proto(entry.position), samples=entry.samples
                    )
                )
        return applied

    def apply(
        self, batch: BatchRange, incarnation: int, samples: int, action: Callable[[], Result]
    ) -> Result | None:
        """`action()` if the range is the partition's next one, None if it was applied before.

        It counts only when `action` succeeds. Raises Conflict for a range that would skip or double
        rows, Fenced for a replaced incarnation.
        """
        entry = self._entry(batch)
        with entry.lock:
            self._check_owner(entry, incarnation)
            if not _is_next(batch, place_of(entry.position)):
                self._outcomes.labels("duplicate").inc()
                return None
            result = action()
            major, minor = batch.last
            entry.position = entry.position.model_copy(update={"major": major, "minor": minor})
            entry.samples += samples
            self._outcomes.labels("applied").inc()
            return result

    def take(self, push: RangePush) -> bool:
        """Counts a push that its barrier is about to apply; whether it must be: its range is new,
        or it has none. One that was fenced while it waited is left out, so that the others' step
        goes on.
        """
        if push.range is None:
            return True
        try:
            return self.apply(push.range, push.incarnation, push.samples, lambda: True) is not None
        except Fenced:
            self._outcomes.labels("fenced").inc()
            return False

    def check(self, batch: BatchRange, incarnation: int) -> None:
        """Raises what `apply` would raise for the range now."""
        entry = self._entry(batch)
        with entry.lock:
            self._check_owner(entry, incarnation)
            _is_next(batch, place_of(entry.position))

    def positions(self) -> list[PositionEntry]:
        """Where every partition goes on, by name."""
        with self._guard:
            return [self._entries[name].position for name in sorted(self._entries)]

    def _entry(self, batch: BatchRange) -> _Entry:
        """The partition's entry; one that nobody claimed begins with its first range."""
        with self._guard:
            entry = self._entries.get(batch.partition)
            if entry is None:
                major, minor = batch.first
                start = PositionEntry(partition=batch.partition, major=major, minor=minor)
                entry = self._entries[batch.partition] = _Entry(start)
            return entry

    def _check_owner(self, entry: _Entry, incarnation: int) -> None:
        if incarnation < entry.incarnation:
            raise Fenced(
                f"{entry.position.partition} belongs to incarnation {entry.incarnation}, "
                f"{incarnation} calls"
            )


def check_stored(
    uri: str, stored: Sequence[Sequence[object]], positions: Iterable[PositionEntry]
) -> None:
    """Raises Damaged when a file's table, as `stored_form` gave it, is not that of the manifest."""
    wanted = {entry.partition: place_of(entry) for entry in positions}
    for partition, *place in stored:
        if wanted.get(str(partition)) != tuple(place):
            raise Damaged(
                f"{uri} holds {partition} up to {tuple(place)}, "
                f"its manifest up to {wanted.get(str(partition))}"
            )


def stored_form(positions: Iterable[PositionEntry]) -> list[list[object]]:
    """[partition, major, minor] of each, for a file's header."""
    return [[entry.partition, entry.major, entry.minor] for entry in positions]


def starts_of(request: ps_pb2.ClaimRequest) -> list[PositionEntry]:
    """The partitions a trainer claims, each with the place it would begin at."""
    return [position_from_proto(message) for message in request.starts]


def _is_next(batch: BatchRange, applied: Place) -> bool:
    """Whether the range is new (else it is a duplicate), `applied` being the place reached."""
    if batch.first == applied:
        return True
    if batch.last <= applied:
        return False
    what = "leaves out rows" if batch.first > applied else "is applied in part"
    raise Conflict(
        f"range {batch.first} to {batch.last} of {batch.partition} {what}: "
        f"this server has applied it up to {applied}"
    )
