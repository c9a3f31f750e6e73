"""MessageQueue: messages of one stream partition, decoded, cut into batches wherever a batch is
full.

Knows offsets and rows, not Kafka. A position is (offset of the next message, rows of it already
handed out).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ps_service.ranges import Place
from services.api.manifest import PositionEntry
from services.kit.errors import InvalidInput
from trainer_service.decode_message import BadMessage, MessageDecoder
from trainer_service.sources._bad_rows import BadRows


@dataclass(frozen=True)
class Message:
    """A decoded message."""

    offset: int
    rows: Any  # what the decoder made of it


class MessageQueue:
    """Messages read but not handed out; `end` is the first offset not to read (None: endless)."""

    def __init__(
        self,
        name: str,
        start: PositionEntry,
        end: int | None,
        decoder: MessageDecoder,
        bad_rows: BadRows,
        clock: Callable[[], float] = time.monotonic,
        *,
        cuts: Iterable[Place] = (),
    ) -> None:
        """`cuts` are places in ascending order at which a batch must end."""
        self.name = name
        self.end = end
        self.rows = 0  # waiting
        self.waiting_since = 0.0  # when the oldest of them came
        self.complete = end is not None and start.major >= end  # nothing more will be added
        self.position = start
        self._decoder = decoder
        self._bad = bad_rows
        self._clock = clock
        self._messages: deque[Message] = deque()
        self._skip = (start.major, start.minor)
        self._used = 0  # rows of the first message already handed out
        self._cuts = deque(cuts)
        self.at_cut = False  # the last batch ends at one

    def add(self, offset: int, value: bytes | None) -> None:
        """Decodes a message; one that can't be read is counted as a bad row. Messages come in
        offset order.
        """
        if self.end is not None and offset >= self.end:
            self.complete = True
            return
        self.complete = self.end is not None and offset + 1 >= self.end
        try:
            if value is None:
                raise BadMessage("it has no value")
            rows = self._decoder.parse(value)
        except BadMessage as problem:
            self._bad.add(
                f"{self.name} offset {offset}",
                str(problem),
                (value or b"")[:500].decode("utf-8", "replace"),
            )
            return
        except InvalidInput as error:
            raise InvalidInput(f"{self.name} offset {offset}: {error}") from None
        used = self._skip[1] if offset == self._skip[0] else 0
        if used >= len(rows):
            return
        if not self._messages:
            self._used = used
            self.waiting_since = self._clock()
        self._messages.append(Message(offset, rows))
        self.rows += len(rows) - used

    def take(self, limit: int) -> pa.RecordBatch:
        """Up to `limit` waiting rows (there must be some) that fit together and lie on one side of
        every cut; moves the position behind them.
        """
        pieces: list[tuple[Any, int, int]] = []
        taken = 0
        offset = self.position.major
        while self._messages and taken < limit:
            message = self._messages[0]
            if pieces and not self._decoder.fits(pieces[0][0], message.rows):
                break
            end = self._end(message, begun=bool(pieces))
            if end <= self._used:
                break
            stop = min(end, self._used + limit - taken)
            pieces.append((message.rows, self._used, stop))
            taken += stop - self._used
            if stop < len(message.rows):
                offset, self._used = message.offset, stop
            else:
                offset, self._used = message.offset + 1, 0
                self._messages.popleft()
        self.at_cut = bool(self._cuts) and (offset, self._used) >= self._cuts[0]
        while self._cuts and (offset, self._used) >= self._cuts[0]:
            self._cuts.popleft()
        self.rows -= taken
        self.waiting_since = self._clock()
        self.position = self.position.model_copy(update={"major": offset, "minor": self._used})
        return self._decoder.join(pieces)

    def _end(self, message: Message, *, begun: bool) -> int:
        """Rows of the message before the next cut; none where a batch that has begun must end."""
        while self._cuts:
            major, minor = self._cuts[0]
            if message.offset < major:
                break
            if message.offset == major and self._used < minor:
                return minor
            if begun:
                return 0
            self._cuts.popleft()  # nothing is left to hand out before it
        return len(message.rows)
