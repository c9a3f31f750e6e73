"""The Kafka source and `produce` against a real broker."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from embermesh.produce import produce
from services.api.manifest import PositionEntry
from services.api.spec import JobSpec, validate
from services.kit.errors import Damaged, InvalidInput, NotFound, Unavailable
from tests.fixtures.kafka_broker import KafkaBroker
from trainer_service.sources import EndOfData, Source, open_holdout, open_training
from trainer_service.sources import kafka as kafka_source

ROWS = 500
TIMEOUT = 2.0


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> str:
    name = f"clicks-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(name, 3)
    return name


@pytest.fixture
def csv(tmp_path: Path) -> str:
    path = tmp_path / "rows.csv"
    path.write_text("y,id\n" + "".join(f"{i % 2},{i}\n" for i in range(ROWS)))
    return f"file://{path}"


def job(servers: str, topic: str, data_format: str, *, batch_size: int = 32, **data) -> JobSpec:
    return validate(
        {
            "name": "t",
            "model": {"name": "lr"},
            "data": {"source": f"kafka://{servers}/{topic}", "format": data_format, **data},
            "features": {"label": "y", "sparse": {"id": {"encode": "id"}}},
            "training": {"batch_size": batch_size},
        }
    )


def drain(source: Source, limit: int = 10**9) -> list[int]:
    ids: list[int] = []
    try:
        for _ in range(limit):
            batch = source.next_batch(TIMEOUT)
            if batch is not None:
                ids += batch.keys.tolist()
    except EndOfData:
        pass
    finally:
        source.close()
    return ids


def positions(sources: list[Source]) -> dict[str, PositionEntry]:
    return {p.partition: p for source in sources for p in source.positions()}


@pytest.mark.parametrize("data_format", ["json", "arrow"])
def test_every_row_once_over_a_stop_with_other_trainer_counts(
    kafka_broker, topic, csv, data_format
):
    servers = kafka_broker.bootstrap
    written = produce(csv, servers, topic, message_format=data_format, rows_per_message=50)
    assert written.rows == ROWS
    assert written.messages == (ROWS if data_format == "json" else 10)
    spec = job(servers, topic, data_format)

    first = [open_training(spec, rank=r, trainers=2) for r in range(2)]
    assert first[0].total_samples == (ROWS if data_format == "json" else None)
    seen = [
        i for source in first for i in drain(source, 2)
    ]  # 2 batches each: stops inside messages
    assert 0 < len(seen) < ROWS
    stopped = positions(first)
    if data_format == "arrow":
        assert any(p.minor for p in stopped.values())

    produce(csv, servers, topic, message_format=data_format)  # later rows are not the bounded job's
    rest = [open_training(spec, rank=r, trainers=3, resume=stopped) for r in range(3)]
    assert sum(source.lag() or 0 for source in rest) > 0
    seen += [i for source in rest for i in drain(source)]
    assert sorted(seen) == list(range(ROWS))

    done = positions(rest)
    assert all(p.major == p.end == stopped[name].end for name, p in done.items())
    assert drain(open_training(spec, rank=0, trainers=1, resume=done)) == []


def test_holdout_is_the_last_share_of_each_partition(kafka_broker, topic, csv):
    produce(csv, kafka_broker.bootstrap, topic)
    spec = job(kafka_broker.bootstrap, topic, "json", holdout={"last": 0.2})
    train = drain(open_training(spec, rank=0, trainers=1))
    holdout = open_holdout(spec)
    assert holdout is not None
    held = drain(holdout)
    assert sorted(train + held) == list(range(ROWS))
    assert len(held) == pytest.approx(0.2 * ROWS, abs=3)
    assert min(held) >= 0.79 * ROWS


def test_an_endless_job_sees_what_comes_later(kafka_broker, topic, csv):
    spec = job(kafka_broker.bootstrap, topic, "json", endless=True)
    source = open_training(spec, rank=0, trainers=1)
    assert source.next_batch(0.2) is None
    produce(csv, kafka_broker.bootstrap, topic, limit=40)
    ids: list[int] = []
    end = time.monotonic() + 20
    while len(ids) < 40 and time.monotonic() < end:
        batch = source.next_batch(0.2)
        ids += batch.keys.tolist() if batch is not None else []
    assert sorted(ids) == list(range(40))
    assert source.lag() == 0
    source.close()


def test_bad_messages_are_counted_and_skipped(kafka_broker, topic, csv):
    produce(csv, kafka_broker.bootstrap, topic, limit=9)
    with_garbage = KafkaProducer(bootstrap_servers=kafka_broker.bootstrap)
    with_garbage.send(topic, b"\x00not json", partition=1)
    with_garbage.close()
    spec = job(kafka_broker.bootstrap, topic, "json", max_bad_rows=1)
    source = open_training(spec, rank=0, trainers=1)
    assert sorted(drain(source)) == list(range(9))
    assert source.bad_rows == 1
    strict = open_training(job(kafka_broker.bootstrap, topic, "json"), rank=0, trainers=1)
    with pytest.raises(
        InvalidInput, match=f"data.max_bad_rows allows 0; the last one: {topic}-1 offset 3"
    ):
        drain(strict)


def test_positions_whose_messages_were_deleted_are_refused_by_name(kafka_broker, topic, csv):
    produce(csv, kafka_broker.bootstrap, topic, limit=90)
    spec = job(kafka_broker.bootstrap, topic, "json")
    source = open_training(spec, rank=0, trainers=1)
    old = positions([source])
    source.close()
    admin = KafkaAdminClient(bootstrap_servers=kafka_broker.bootstrap)
    admin.delete_records({TopicPartition(topic, 2): 10})
    admin.close()
    with pytest.raises(
        Damaged, match=rf"{topic}-2 .* goes on at offset 0, but the broker keeps offsets 10 to 30"
    ):
        open_training(spec, rank=0, trainers=1, resume=old)
    entry = old[f"{topic}-0"]
    beyond = {entry.partition: entry.model_copy(update={"major": 31, "end": 50})}
    with pytest.raises(
        Damaged, match=f"{topic}-0 .*offset 31, but the broker keeps offsets 0 to 30"
    ):
        open_training(spec, rank=0, trainers=1, resume=beyond)
    with pytest.raises(InvalidInput, match="'lane-00' doesn't belong to topic"):
        open_training(spec, rank=0, trainers=1, resume={"lane-00": entry})


def test_a_missing_topic_is_named_and_not_created(kafka_broker, csv):
    servers = kafka_broker.bootstrap
    for attempt in (
        lambda: open_training(job(servers, "no-such-topic", "json"), rank=0, trainers=1),
        lambda: produce(csv, servers, "no-such-topic"),
    ):
        with pytest.raises(NotFound, match="topic 'no-such-topic' is not on"):
            attempt()
    consumer = KafkaConsumer(bootstrap_servers=servers)
    assert "no-such-topic" not in consumer.topics()
    consumer.close()


@pytest.mark.parametrize("who", ["source", "produce"])
def test_a_missing_broker_is_named_soon(free_port, csv, who, monkeypatch):
    monkeypatch.setattr(kafka_source, "_REQUEST_SECONDS", 1.0)
    server = f"127.0.0.1:{free_port}"
    start = time.monotonic()
    with pytest.raises(Unavailable, match=server):
        if who == "source":
            open_training(job(server, "t", "json"), rank=0, trainers=1)
        else:
            produce(csv, server, "t")
    assert time.monotonic() - start < 8


def test_produce_makes_the_topic_and_keeps_types(kafka_broker, tmp_path):
    table = pa.table({"y": [1, 0, 1], "id": [2**60, None, 7], "note": ["ä", "b", None]})
    pq.write_table(table, tmp_path / "a.parquet")
    name = f"made-{uuid.uuid4().hex[:8]}"
    told: list[int] = []
    done = produce(
        f"file://{tmp_path}/a.parquet",
        kafka_broker.bootstrap,
        name,
        columns=["id", "y"],
        create_partitions=2,
        progress=told.append,
    )
    assert (done.rows, done.messages, done.bad_lines, told) == (3, 3, 0, [3])
    consumer = KafkaConsumer(
        name, bootstrap_servers=kafka_broker.bootstrap, auto_offset_reset="earliest"
    )
    assert consumer.partitions_for_topic(name) == {0, 1}
    values: list[bytes] = []
    end = time.monotonic() + 20
    while len(values) < 3 and time.monotonic() < end:
        for records in consumer.poll(timeout_ms=500).values():
            values += [r.value for r in records]
    consumer.close()
    assert sorted(values) == [b'{"id":%d,"y":1}' % 2**60, b'{"id":7,"y":1}', b'{"id":null,"y":0}']


def test_produce_refuses_what_it_cannot_do(csv):
    with pytest.raises(InvalidInput, match="message format 'avro' is not one of json, arrow"):
        produce(csv, "127.0.0.1:1", "t", message_format="avro")
    with pytest.raises(InvalidInput, match="rows per message is 0"):
        produce(csv, "127.0.0.1:1", "t", rows_per_message=0)
    with pytest.raises(NotFound, match=r"gone\.csv"):
        produce("file:///gone.csv", "127.0.0.1:1", "t")
