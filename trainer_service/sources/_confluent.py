"""A topic read by confluent-kafka, the client on librdkafka: for topics of single-row messages.

The same face as `kafka.Topic`, chosen by `data.kafka_client`. librdkafka fetches and checks
messages on threads of its own, without the interpreter. Imported only when a job asks for it: the
package is an extra.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from services.kit.errors import Damaged, NotFound, Unavailable

if TYPE_CHECKING:
    from trainer_service.sources.kafka import KafkaUrl

log = logging.getLogger(__name__)

_REQUEST_SECONDS = 10.0
_DELETED = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


class ConfluentTopic:
    """A connection to one topic; turns the client's errors into ours. See `_message_source.Stream`
    for the verbs.
    """

    def __init__(self, url: KafkaUrl) -> None:
        """Raises NotFound for a topic that isn't there, Unavailable without an answer."""
        self.url = url
        self._consumer = Consumer(
            {
                "bootstrap.servers": self.url.address,
                "group.id": "embermesh",  # must be given; nothing joins or commits to it
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "allow.auto.create.topics": False,
                "check.crcs": True,
                "socket.timeout.ms": int(_REQUEST_SECONDS * 1000),
            },
            logger=log,
        )
        self._closed = False
        self._ends: dict[int, int] = {}  # where a partition ended when it was read to its end
        try:
            self.partitions = self._numbers()
        except Exception:
            self.close()
            raise

    def name(self, partition: int) -> str:
        """The source partition's name in positions."""
        return f"{self.url.topic}-{partition}"

    def ranges(self) -> dict[int, tuple[int, int]]:
        """Partition -> (first offset kept, offset after the last message) now."""
        with self._reachable("asking for offsets"):
            return {
                number: self._consumer.get_watermark_offsets(self._at(number), _REQUEST_SECONDS)
                for number in self.partitions
            }

    def seek(self, offsets: Mapping[int, int]) -> None:
        """Reads the given partitions, from these offsets on."""
        with self._reachable("seeking"):
            self._consumer.assign([self._at(n, offset) for n, offset in offsets.items()])
        self._ends.clear()

    def poll(self, seconds: float, most: int) -> dict[int, list[tuple[int, bytes | None]]]:
        """Partition -> (offset, value) of new messages. Raises Damaged when the wanted ones are
        deleted.
        """
        found: dict[int, list[tuple[int, bytes | None]]] = {}
        with self._reachable("reading"):
            # `consume` waits until it has all it may give, so only the first message is waited for.
            first = self._consumer.poll(seconds)
            messages = [] if first is None else [first, *self._consumer.consume(most - 1, 0.0)]
        for message in messages:
            number, offset = message.partition(), message.offset()
            if message.error() is not None:
                self._note(message)
            elif number is not None and offset is not None:
                value = message.value()
                found.setdefault(number, []).append((offset, _bytes(value)))
        return found

    def next_offset(self, partition: int) -> int:
        """Where the next poll reads; beyond the last message where markers or compaction left a
        gap.
        """
        with self._reachable("asking for positions"):
            (position,) = self._consumer.position([self._at(partition)])
        return max(position.offset, self._ends.get(partition, 0))  # below 0: nothing read yet

    def high_water(self, partition: int) -> int | None:
        """Offset after the last message the broker told of."""
        with self._reachable("asking for offsets"):
            _, high = self._consumer.get_watermark_offsets(self._at(partition), cached=True)
        return high if high >= 0 else None

    def stop_reading(self, partition: int) -> None:
        """No more messages of this partition are wanted."""
        with self._reachable("pausing"):
            self._consumer.pause([self._at(partition)])

    def close(self) -> None:
        """Ends the connection."""
        if not self._closed:
            self._closed = True
            self._consumer.close()

    def _numbers(self) -> list[int]:
        with self._reachable("listing topics"):
            topics = self._consumer.list_topics(timeout=_REQUEST_SECONDS).topics
        known = topics.get(self.url.topic)
        if known is None or not known.partitions:
            there = sorted(name for name, found in topics.items() if found.error is None)
            raise NotFound(
                f"topic {self.url.topic!r} is not on {self.url.address}; "
                f"it has: {', '.join(there) or 'none'}"
            )
        return sorted(known.partitions)

    def _at(self, partition: int, offset: int = 0) -> TopicPartition:
        return TopicPartition(self.url.topic, partition, offset)

    def _note(self, message: Message) -> None:
        """An event that stands where a message would: the end of a partition, or an error. Others
        than those of deleted messages pass; a broker that stays away is found by its silence.
        """
        error, number, offset = message.error(), message.partition(), message.offset()
        if error is None:
            return
        if error.code() == KafkaError._PARTITION_EOF and number is not None and offset is not None:
            self._ends[number] = offset
        elif error.code() in _DELETED:
            raise Damaged(
                f"{self.url.topic} on {self.url.address}: the next messages were deleted: "
                f"{error.str()}"
            )
        elif error.fatal():
            raise Unavailable(f"Kafka broker {self.url.address} (reading): {error.str()}")
        else:
            log.info("reading %s: %s", self.url.topic, error.str())

    @contextmanager
    def _reachable(self, doing: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as problem:
            error = problem.args[0]
            raise Unavailable(
                f"Kafka broker {self.url.address} doesn't answer ({doing}): {error.str()}"
            ) from problem


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
