"""kafka://HOST:PORT[,HOST:PORT…]/TOPIC: messages by partition and offset; no group, no commit.

Partition p belongs to trainer p % trainers. A bounded job ends at the end offsets found at its
first start; they are part of the positions, so a resumed job ends at the same place. With
`holdout.last` it ends before the last share of each partition's offsets. Positions are those of
`MessageQueue`.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

from ps_service.client.claim import Claimed
from services.api.manifest import PositionEntry
from services.api.spec import JobSpec
from services.kit.errors import Damaged, InvalidInput, NotFound, Unavailable
from trainer_service.decode_message import MessageDecoder, decoder
from trainer_service.sources import Claimer
from trainer_service.sources._bad_rows import BadRows
from trainer_service.sources._message_source import MessageSource
from trainer_service.sources._messages import MessageQueue
from trainer_service.sources.file import training_rows
from trainer_service.transform import Transform

if TYPE_CHECKING:  # an extra, imported when a job wants it
    from trainer_service.sources._confluent import ConfluentTopic

_REQUEST_SECONDS = 10.0
_CONNECT_SECONDS = 1.0
_POLL_MESSAGES = 512
_POLL_PACKED = 16  # messages that hold many rows


@dataclass(frozen=True)
class KafkaUrl:
    """Where a topic is."""

    servers: tuple[str, ...]  # HOST:PORT
    topic: str

    @staticmethod
    def parse(url: str) -> KafkaUrl:
        """Raises InvalidInput that says what the URL lacks."""
        hosts, _, topic = url.removeprefix("kafka://").partition("/")
        if not hosts or not topic or "/" in topic:
            raise InvalidInput(f"data.source {url!r}: write it like kafka://HOST:9092/TOPIC")
        servers = tuple(host if ":" in host else f"{host}:9092" for host in hosts.split(","))
        for server in servers:
            if not server.rpartition(":")[2].isdigit():
                raise InvalidInput(f"data.source {url!r}: {server!r} has no port number")
        return KafkaUrl(servers, topic)

    @property
    def address(self) -> str:
        """For messages."""
        return ",".join(self.servers)


def wait_for_broker(servers: Sequence[str]) -> None:
    """Returns when one of the servers takes a connection; Unavailable when none does for long.

    The client's own attempt would leave its thread and sockets behind.
    """
    deadline = time.monotonic() + _REQUEST_SECONDS
    while True:
        for server in servers:
            host, _, port = server.rpartition(":")
            try:
                socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
                return
            except OSError as error:
                problem = error
        if time.monotonic() >= deadline:
            raise Unavailable(f"no Kafka broker at {','.join(servers)}: {problem}") from problem
        threading.Event().wait(_CONNECT_SECONDS)


class Topic:
    """A connection to one topic; turns the client's errors into ours."""

    def __init__(self, url: KafkaUrl) -> None:
        self.url = url
        wait_for_broker(url.servers)
        with self._reachable("connecting"):
            self._consumer: Any = KafkaConsumer(
                bootstrap_servers=list(url.servers),
                bootstrap_timeout_ms=int(_REQUEST_SECONDS * 1000),
                request_timeout_ms=int(_REQUEST_SECONDS * 1000),
                group_id=None,
                enable_auto_commit=False,
                allow_auto_create_topics=False,
                auto_offset_reset="none",
                isolation_level="read_committed",
            )
        try:
            with self._reachable("listing topics"):
                numbers = self._consumer.partitions_for_topic(url.topic)
                known = () if numbers else self._consumer.topics()
        except Unavailable:
            self.close()
            raise
        if not numbers:
            self.close()
            raise NotFound(
                f"topic {url.topic!r} is not on {url.address}; "
                f"it has: {', '.join(sorted(known)) or 'none'}"
            )
        self._tp = {n: TopicPartition(url.topic, n) for n in sorted(numbers)}

    @property
    def partitions(self) -> list[int]:
        """Numbers of the topic's partitions."""
        return list(self._tp)

    def name(self, partition: int) -> str:
        """The source partition's name in positions."""
        return f"{self.url.topic}-{partition}"

    def ranges(self) -> dict[int, tuple[int, int]]:
        """Partition -> (first offset kept, offset after the last message) now."""
        with self._reachable("asking for offsets"):
            first = self._consumer.beginning_offsets(list(self._tp.values()))
            end = self._consumer.end_offsets(list(self._tp.values()))
        return {n: (first[tp], end[tp]) for n, tp in self._tp.items()}

    def seek(self, offsets: Mapping[int, int]) -> None:
        """Reads the given partitions, from these offsets on."""
        self._consumer.assign([self._tp[n] for n in offsets])
        for number, offset in offsets.items():
            self._consumer.seek(self._tp[number], offset)

    def poll(self, seconds: float, most: int) -> dict[int, list[tuple[int, bytes | None]]]:
        """Partition -> (offset, value) of new messages. Raises Damaged when the wanted ones are
        deleted.
        """
        try:
            with self._reachable("reading"):
                records = self._consumer.poll(timeout_ms=int(seconds * 1000), max_records=most)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            raise Damaged(
                f"{self.url.topic} on {self.url.address}: the next messages were deleted: {error}"
            ) from error
        return {tp.partition: [(r.offset, r.value) for r in found] for tp, found in records.items()}

    def next_offset(self, partition: int) -> int:
        """Where the next poll reads; beyond the last message where markers or compaction left a
        gap.
        """
        return int(self._consumer.position(self._tp[partition], timeout_ms=1000) or 0)

    def high_water(self, partition: int) -> int | None:
        """Offset after the last message the broker told of."""
        mark: int | None = self._consumer.highwater(self._tp[partition])
        return mark

    def stop_reading(self, partition: int) -> None:
        """No more messages of this partition are wanted."""
        self._consumer.pause(self._tp[partition])

    def close(self) -> None:
        """Ends the connection."""
        self._consumer.close(autocommit=False, timeout_ms=1000)

    @contextmanager
    def _reachable(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (OffsetOutOfRangeError, NoOffsetForPartitionError):
            raise
        except KafkaError as error:
            raise Unavailable(
                f"Kafka broker {self.url.address} doesn't answer ({doing}): {error}"
            ) from error


AnyTopic: TypeAlias = "Topic | ConfluentTopic"


def connect(spec: JobSpec, url: KafkaUrl) -> AnyTopic:
    """The topic by the client that the job wants. Raises InvalidInput when it isn't installed."""
    if spec.data.kafka_client == "kafka-python":
        return Topic(url)
    try:
        from trainer_service.sources._confluent import ConfluentTopic
    except ImportError as error:
        raise InvalidInput(
            "data.kafka_client: confluent is not installed here; it is the extra "
            f"embermesh[confluent] ({error})"
        ) from error
    wait_for_broker(url.servers)
    return ConfluentTopic(url)


def open_training(
    spec: JobSpec,
    *,
    rank: int,
    trainers: int,
    resume: Mapping[str, PositionEntry],
    claim: Claimer,
) -> MessageSource:
    """See `sources.open_training`."""
    topic = connect(spec, KafkaUrl.parse(spec.data.source))
    try:
        return _training(spec, topic, rank, trainers, resume, claim)
    except Exception:
        topic.close()
        raise


def open_holdout(spec: JobSpec, url: str) -> MessageSource | None:
    """See `sources.open_holdout`. Offsets only grow, so what was trained before is never in it."""
    if spec.data.holdout is None:
        return None
    if spec.data.format not in ("json", "arrow"):
        raise InvalidInput(
            f"data.holdout.source {url!r}: a kafka:// holdout needs data.format json or arrow"
        )
    last = spec.data.holdout.last
    topic = connect(spec, KafkaUrl.parse(url))
    try:
        starts = {}
        for number, (first, end) in topic.ranges().items():
            start = first if last is None else first + training_rows(end - first, last)
            starts[number] = Claimed(
                PositionEntry(partition=topic.name(number), major=start, minor=0, end=end)
            )
        return _source(spec, topic, starts, bounded=True, total=None)
    except Exception:
        topic.close()
        raise


def _training(
    spec: JobSpec,
    topic: AnyTopic,
    rank: int,
    trainers: int,
    resume: Mapping[str, PositionEntry],
    claim: Claimer,
) -> MessageSource:
    names = {topic.name(number) for number in topic.partitions}
    unknown = sorted(resume.keys() - names)
    if unknown:
        raise InvalidInput(
            f"position of {unknown[0]!r} doesn't belong to topic {topic.url.topic!r} "
            f"on {topic.url.address}"
        )
    last = spec.data.holdout.last if spec.data.holdout is not None else None
    starts: dict[int, PositionEntry] = {}
    rows = 0
    ranges = topic.ranges()
    for number, (first, end) in ranges.items():
        name = topic.name(number)
        entry = resume.get(name)
        if entry is None:
            stop = end if last is None else first + training_rows(end - first, last)
            entry = PositionEntry(
                partition=name, major=first, minor=0, end=0 if spec.data.endless else stop
            )
        rows += entry.end - first
        if number % trainers == rank:
            starts[number] = entry
    claimed = claim(list(starts.values()))
    owned = {number: claimed[entry.partition] for number, entry in starts.items()}
    for number, place in owned.items():
        _check_kept(topic, place.position, *ranges[number])
    total = rows if spec.data.format == "json" and not spec.data.endless else None
    return _source(spec, topic, owned, bounded=not spec.data.endless, total=total)


def _check_kept(topic: AnyTopic, entry: PositionEntry, first: int, end: int) -> None:
    done = entry.end != 0 and entry.major >= entry.end
    if not done and not (first <= entry.major <= end and entry.end <= end):
        raise Damaged(
            f"{entry.partition} on {topic.url.address}: the job goes on at offset {entry.major}, "
            f"but the broker keeps offsets {first} to {end}"
        )


def _source(
    spec: JobSpec,
    topic: AnyTopic,
    starts: Mapping[int, Claimed],
    *,
    bounded: bool,
    total: int | None,
) -> MessageSource:
    bad_rows = BadRows(spec.data.max_bad_rows)
    messages: MessageDecoder = decoder(spec.data.format, spec.features.columns())
    queues = {
        number: MessageQueue(
            start.position.partition,
            start.position,
            start.position.end if bounded else None,
            messages,
            bad_rows,
            cuts=start.cuts,
        )
        for number, start in starts.items()
    }
    return MessageSource(
        topic,
        queues,
        Transform(spec.features),
        spec.training.batch_size,
        bad_rows,
        endless=not bounded,
        poll_messages=_POLL_MESSAGES if messages.rows_are_messages else _POLL_PACKED,
        total_samples=total,
    )
