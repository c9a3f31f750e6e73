"""Rows of files -> messages of a Kafka topic, in file order: what `embermesh produce` does.

Message i goes to partition i % partitions, so each partition keeps the file's order. The message
formats are those of docs/formats.md, "Kafka messages".
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from kafka.errors import KafkaError, TopicAlreadyExistsError

from services.kit.errors import InvalidInput, NotFound, Unavailable
from trainer_service.decode import BadLine, open_rows
from trainer_service.sources.kafka import KafkaUrl, wait_for_broker

FORMATS = ("json", "arrow")
_REQUEST_MS = 10_000
_FLUSH_SECONDS = 60.0
_MAX_MESSAGE_BYTES = 16 << 20


@dataclass(frozen=True)
class Produced:
    """What was written."""

    rows: int
    messages: int
    bad_lines: int
    seconds: float


def produce(
    source: str,
    servers: str,
    topic: str,
    *,
    message_format: str = "json",
    data_format: str = "auto",
    columns: Sequence[str] | None = None,
    rows_per_message: int = 256,
    create_partitions: int | None = None,
    limit: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Produced:
    """Writes the rows of `source` (file:// or s3://, glob) to `topic` on `servers` (HOST:PORT,…).

    `rows_per_message` is for arrow; json has one row each. `create_partitions` makes the topic when
    it isn't there. `limit` ends after so many rows; `progress` is told the rows so far. Malformed
    lines are counted and left out. Raises InvalidInput, NotFound (files, topic), Damaged (files),
    Unavailable (broker).
    """
    if message_format not in FORMATS:
        raise InvalidInput(f"message format {message_format!r} is not one of {', '.join(FORMATS)}")
    if rows_per_message < 1:
        raise InvalidInput(f"rows per message is {rows_per_message}, must be at least 1")
    begin = time.monotonic()
    bad: list[BadLine] = []
    reader = open_rows(source, data_format, columns)
    blocks = _limited((b.rows for b in reader.blocks(0, bad.append) if b.rows is not None), limit)
    rows = messages = 0
    wait_for_broker(KafkaUrl.parse(f"kafka://{servers}/{topic}").servers)
    try:
        partitions = _partitions(servers, topic, create_partitions)
        with _Sender(servers, topic, partitions) as sender:
            for block in blocks:
                for count, value in pack_messages(block, message_format, rows_per_message):
                    sender.send(value)
                    rows += count
                    messages += 1
                if progress is not None:
                    progress(rows)
    except KafkaError as error:
        raise Unavailable(f"Kafka broker {servers}: {error}") from error
    return Produced(rows, messages, len(bad), time.monotonic() - begin)


class _Sender:
    """Sends in order, round robin; leaving the block waits for every acknowledgement."""

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        self._topic = topic
        self._partitions = partitions
        self._sent = 0
        self._failures: list[Exception] = []
        self._producer: Any = KafkaProducer(
            bootstrap_servers=servers.split(","),
            bootstrap_timeout_ms=_REQUEST_MS,
            request_timeout_ms=_REQUEST_MS,
            max_block_ms=_REQUEST_MS,
            max_request_size=_MAX_MESSAGE_BYTES,
            linger_ms=20,
            batch_size=1 << 18,
            allow_auto_create_topics=False,
        )

    def __enter__(self) -> _Sender:
        return self

    def send(self, value: bytes) -> None:
        """Queues one message; raises the first failure of an earlier one."""
        future = self._producer.send(
            self._topic, value=value, partition=self._sent % self._partitions
        )
        future.add_errback(self._failures.append)
        self._sent += 1
        self._raise()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._producer.flush(timeout=_FLUSH_SECONDS)
                self._raise()
        finally:
            self._producer.close(timeout=1)

    def _raise(self) -> None:
        if self._failures:
            raise self._failures[0]


def _partitions(servers: str, topic: str, create: int | None) -> int:
    admin = KafkaAdminClient(
        bootstrap_servers=servers.split(","),
        bootstrap_timeout_ms=_REQUEST_MS,
        request_timeout_ms=_REQUEST_MS,
    )
    try:
        topics = sorted(admin.list_topics())
        if topic not in topics:
            if create is None:
                raise NotFound(
                    f"topic {topic!r} is not on {servers}; it has: {', '.join(topics) or 'none'}"
                )
            try:
                admin.create_topics([NewTopic(topic, num_partitions=create, replication_factor=1)])
            except TopicAlreadyExistsError:
                pass  # somebody was faster
            else:
                return create
        return len(admin.describe_topics([topic])[0]["partitions"])
    finally:
        admin.close()


def _limited(blocks: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    left = limit
    for block in blocks:
        if left is None:
            yield block
            continue
        if left <= 0:
            return
        yield block.slice(0, left)
        left -= min(left, block.num_rows)


def pack_messages(
    block: pa.RecordBatch, message_format: str, rows: int
) -> Iterator[tuple[int, bytes]]:
    """(rows, value) of each message of a block, in order; `rows` at most in one of arrow."""
    if message_format == "json":
        for row in block.to_pylist():
            yield 1, json.dumps(row, default=_text, separators=(",", ":")).encode()
        return
    for start in range(0, block.num_rows, rows):
        part = block.slice(start, rows)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, part.schema) as writer:
            writer.write_batch(part)
        yield part.num_rows, sink.getvalue().to_pybytes()


def _text(value: object) -> str:
    """JSON form of a value that JSON has no type for: bytes of text files, dates, decimals."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
