"""What a batch is made of, and how far a server has come with a source partition; values that
trainers and servers share. docs/exactly-once.md has the protocol.

Places of a source partition are pairs of integers in lexicographic order; what they mean is the
source's business.
"""

from __future__ import annotations

import dataclasses

from services.api.manifest import PositionEntry
from services.kit.errors import InvalidInput
from services.wire import ps_pb2, trainer_pb2

Place = tuple[int, int]  # major, minor


@dataclasses.dataclass(frozen=True)
class BatchRange:
    """The rows of `partition` from `first` up to, not including, `last`."""

    partition: str
    first: Place
    last: Place

    @classmethod
    def from_proto(cls, message: ps_pb2.BatchRange) -> BatchRange:
        """Raises InvalidInput for a range without a partition or without room for a row."""
        first = (message.first_major, message.first_minor)
        last = (message.last_major, message.last_minor)
        if not message.partition or first >= last:
            raise InvalidInput(
                f"range of partition {message.partition!r} is {first} to {last}; "
                "it needs a partition, and its first place must be before its last"
            )
        return cls(message.partition, first, last)

    def to_proto(self) -> ps_pb2.BatchRange:
        """Inverse of from_proto."""
        return ps_pb2.BatchRange(
            partition=self.partition,
            first_major=self.first[0],
            first_minor=self.first[1],
            last_major=self.last[0],
            last_minor=self.last[1],
        )


def place_of(entry: PositionEntry) -> Place:
    """The place a position names."""
    return entry.major, entry.minor


def position_from_proto(message: trainer_pb2.Position) -> PositionEntry:
    """The entry a message stands for."""
    return PositionEntry(
        partition=message.partition, major=message.major, minor=message.minor, end=message.end
    )


def position_to_proto(entry: PositionEntry) -> trainer_pb2.Position:
    """Inverse of position_from_proto."""
    return trainer_pb2.Position(**entry.model_dump())
