"""The fixtures themselves: each server is real and answers its ordinary client."""

from __future__ import annotations

import socket

import fsspec
import redis
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.fixtures.kafka_broker import KafkaBroker
from tests.fixtures.ports import LOOPBACK
from tests.fixtures.s3 import S3


def test_a_free_port_can_be_bound(free_port: int) -> None:
    with socket.socket() as server:
        server.bind((LOOPBACK, free_port))


def test_redis_keeps_what_it_is_told(redis_db: redis.Redis, redis_url: str) -> None:
    redis_db.set("job", "running")
    with redis.Redis.from_url(redis_url, decode_responses=True) as other:
        assert other.get("job") == "running"


def test_redis_is_empty_for_the_next_test(redis_db: redis.Redis) -> None:
    assert redis_db.dbsize() == 0


def test_redis_writes_nothing_to_disk(redis_db: redis.Redis) -> None:
    assert redis_db.config_get("save")["save"] == ""
    assert redis_db.config_get("appendonly")["appendonly"] == "no"


def _read(bootstrap: str, partition: TopicPartition, count: int) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=10_000)
    try:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        return [record.value for _, record in zip(range(count), consumer, strict=False)]
    finally:
        consumer.close()


def test_kafka_keeps_records_over_a_restart(kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic("infra", partitions=2)
    producer = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap)
    for number in range(3):
        producer.send("infra", str(number).encode(), partition=1).get(timeout=10)
    producer.close()
    last = TopicPartition("infra", 1)
    assert _read(kafka_broker.bootstrap, last, 3) == [b"0", b"1", b"2"]

    kafka_broker.stop()
    kafka_broker.start()

    assert _read(kafka_broker.bootstrap, last, 3) == [b"0", b"1", b"2"]


def test_s3_stores_files_through_fsspec(s3: S3) -> None:
    files = fsspec.filesystem("s3", **s3.options)
    files.pipe_file(f"{s3.bucket}/checkpoints/000001/manifest.json", b"{}")
    assert files.ls(f"{s3.bucket}/checkpoints/000001") == [
        f"{s3.bucket}/checkpoints/000001/manifest.json"
    ]
    with fsspec.open(f"{s3.url}/checkpoints/000001/manifest.json", "rb", **s3.options) as file:
        assert file.read() == b"{}"


def test_s3_buckets_start_empty(s3: S3) -> None:
    assert fsspec.filesystem("s3", **s3.options).ls(s3.bucket) == []
