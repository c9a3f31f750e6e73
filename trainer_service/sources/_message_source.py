"""MessageSource: batches of the messages of a partitioned stream, read by partition and offset.

Knows the stream only as `Stream`; `kafka` has the real one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from ps_service.ranges import place_of
from services.api.manifest import PositionEntry
from services.kit.errors import Unavailable
from trainer_service.batch import Batch
from trainer_service.sources import EndOfData
from trainer_service.sources._bad_rows import BadRows
from trainer_service.sources._messages import MessageQueue
from trainer_service.transform import Transform

_PROBE_AFTER = 5.0  # seconds without a message until the broker is asked whether it lives
# Seconds without an answer until the job is told: a broker that is restarted is back sooner.
_GIVE_UP_AFTER = 300.0
_POLL_SECONDS = 1.0


class Stream(Protocol):
    """A partitioned stream. Every method may raise Unavailable that names the broker."""

    def ranges(self) -> dict[int, tuple[int, int]]:
        """Partition -> (first offset kept, offset after the last message) now."""

    def seek(self, offsets: Mapping[int, int]) -> None:
        """Reads these partitions and no others, from these offsets on."""

    def poll(self, seconds: float, most: int) -> Mapping[int, Sequence[tuple[int, bytes | None]]]:
        """Partition -> (offset, value) of new messages; Damaged when the next ones are deleted."""

    def next_offset(self, partition: int) -> int:
        """Where the next poll reads; markers and compaction leave gaps between messages."""

    def high_water(self, partition: int) -> int | None:
        """Offset after the last message, as last heard."""

    def stop_reading(self, partition: int) -> None:
        """No more messages of this partition are wanted."""

    def close(self) -> None:
        """Ends the connection; may be called twice."""


class MessageSource:
    """Batches of some partitions of a topic; see `Source`. Each batch comes from one partition."""

    def __init__(
        self,
        stream: Stream,
        queues: Mapping[int, MessageQueue],
        transform: Transform,
        batch_size: int,
        bad_rows: BadRows,
        *,
        endless: bool,
        poll_messages: int,
        total_samples: int | None,
    ) -> None:
        self.total_samples = total_samples
        self._endless = endless
        self._stream = stream
        self._queues = dict(queues)
        self._handed = {q.name: q.position for q in queues.values()}  # where the last batch ended
        self._transform = transform
        self._batch_size = batch_size
        self._bad = bad_rows
        self._poll_messages = poll_messages
        self._heard = self._probed = time.monotonic()
        self._high: dict[int, int] = {}
        wanted = {
            number: queue.position.major
            for number, queue in self._queues.items()
            if not queue.complete
        }
        self._reading = set(wanted)
        stream.seek(wanted)

    @property
    def bad_rows(self) -> int:
        """Messages and rows skipped by this trainer."""
        return self._bad.own

    def next_batch(self, timeout: float) -> Batch | None:
        """A full batch as soon as a partition has one; what waited for `timeout` seconds otherwise;
        see `Source`.
        """
        now = time.monotonic()
        deadline = now + timeout
        left = timeout
        while True:
            queue = self._ready(now - timeout if left >= 0 else now)
            if queue is not None:
                batch = self._batch(queue)
                if batch.samples or queue.at_cut:
                    self._handed[queue.name] = batch.next
                    return batch
                continue
            if not self._endless and all(q.complete for q in self._queues.values()):
                raise EndOfData
            if left < 0:
                return None
            self._fetch(min(left, _POLL_SECONDS))
            now = time.monotonic()
            left = deadline - now

    def positions(self) -> list[PositionEntry]:
        """See `Source`."""
        return [queue.position for queue in self._queues.values()]

    def lag(self) -> int | None:
        """See `Source`; for a bounded job the messages up to its end."""
        marks = (
            (q.position.major, q.end if q.end is not None else self._high.get(n, 0))
            for n, q in self._queues.items()
        )
        return sum(max(0, mark - offset) for offset, mark in marks)

    def close(self) -> None:
        """See `Source`."""
        self._stream.close()

    def _ready(self, since: float) -> MessageQueue | None:
        """The fullest queue that has a whole batch, gets nothing more, or has waited since before
        `since`.
        """
        ready = [
            q
            for q in self._queues.values()
            if q.rows and (q.rows >= self._batch_size or q.complete or q.waiting_since <= since)
        ]
        return max(ready, key=lambda q: q.rows, default=None)

    def _batch(self, queue: MessageQueue) -> Batch:
        before = queue.position
        rows = self._transform.apply(queue.take(self._batch_size))
        bad = len(rows.good) - int(rows.good.sum())
        if bad:
            where = f"{queue.name} from offset {before.major}"
            for index, reason in rows.reasons:
                self._bad.add(f"{where}, row {before.minor + index} of the batch", reason)
            self._bad.add_silent(bad - len(rows.reasons))
            self._bad.check()
        first = place_of(self._handed[queue.name])
        return Batch(rows.labels, rows.dense, rows.keys, rows.offsets, first, queue.position)

    def _fetch(self, seconds: float) -> None:
        found = self._stream.poll(seconds, self._poll_messages) if self._queues else {}
        for number, messages in found.items():
            queue = self._queues[number]
            for offset, value in messages:
                queue.add(offset, value)
        self._bad.check()
        for number in sorted(self._reading):
            queue = self._queues[number]
            if queue.end is not None and not queue.complete and number not in found:
                queue.complete = self._stream.next_offset(number) >= queue.end
            if queue.complete:
                self._stream.stop_reading(number)
                self._reading.discard(number)
            self._high[number] = self._stream.high_water(number) or self._high.get(number, 0)
        self._watch(bool(found))

    def _watch(self, heard: bool) -> None:
        """A silent broker may be a dead one: asks it, and gives up when there is no answer for
        long.
        """
        now = time.monotonic()
        if heard:
            self._heard = self._probed = now
        elif now - self._probed >= _PROBE_AFTER:
            try:
                ends = self._stream.ranges()
            except Unavailable:
                if time.monotonic() - self._heard >= _GIVE_UP_AFTER:
                    raise
            else:
                self._heard = time.monotonic()
                self._high.update({n: ends[n][1] for n in self._queues})
            self._probed = time.monotonic()
