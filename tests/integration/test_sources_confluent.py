"""The Kafka source read by confluent-kafka, against a real broker: the same rows, positions and
refusals as by kafka-python.
"""

from __future__ import annotations

import sys
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from embermesh.produce import produce
from services.api.spec import JobSpec, validate
from services.kit.errors import Damaged, InvalidInput, NotFound, Unavailable
from tests.fixtures.kafka_broker import KafkaBroker
from trainer_service.sources import EndOfData, Source, open_training
from trainer_service.sources import kafka as kafka_source
from trainer_service.sources.kafka import KafkaUrl, connect

ROWS = 300


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


def job(servers: str, topic: str, data_format: str = "json", **data: Any) -> JobSpec:
    where = {"source": f"kafka://{servers}/{topic}", "format": data_format}
    return validate(
        {
            "name": "t",
            "model": {"name": "lr"},
            "data": {**where, "kafka_client": "confluent", **data},
            "features": {"label": "y", "sparse": {"id": {"encode": "id"}}},
            "training": {"batch_size": 32},
        }
    )


def drain(source: Source, limit: int = 10**9) -> list[int]:
    ids: list[int] = []
    try:
        for _ in range(limit):
            batch = source.next_batch(2.0)
            if batch is not None:
                ids += batch.keys.tolist()
    except EndOfData:
        pass
    finally:
        source.close()
    return ids


@pytest.mark.parametrize("data_format", ["json", "arrow"])
def test_every_row_once_over_a_stop_and_a_change_of_client(kafka_broker, topic, csv, data_format):
    servers = kafka_broker.bootstrap
    produce(csv, servers, topic, message_format=data_format, rows_per_message=50)
    spec = job(servers, topic, data_format)
    first = [open_training(spec, rank=r, trainers=2) for r in range(2)]
    seen = [i for source in first for i in drain(source, 2)]
    assert 0 < len(seen) < ROWS
    stopped = {p.partition: p for source in first for p in source.positions()}
    other = job(servers, topic, data_format, kafka_client="kafka-python")
    rest = [
        open_training(spec if r else other, rank=r, trainers=3, resume=stopped) for r in range(3)
    ]
    assert all(source.lag() for source in rest)
    seen += [i for source in rest for i in drain(source)]
    assert sorted(seen) == list(range(ROWS))
    assert all(p.major == p.end for source in rest for p in source.positions())


def test_an_endless_job_sees_what_comes_later(kafka_broker, topic, csv):
    source = open_training(job(kafka_broker.bootstrap, topic, endless=True), rank=0, trainers=1)
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
    source.close()


def test_a_transaction_marker_at_the_end_is_no_message_to_wait_for(kafka_broker, topic):
    producer = KafkaProducer(
        bootstrap_servers=kafka_broker.bootstrap, transactional_id=f"t-{topic}"
    )
    producer.init_transactions()
    for commits, values in ((True, (1, 2)), (False, (3,))):
        producer.begin_transaction()
        for value in values:
            producer.send(topic, b'{"y":1,"id":%d}' % value, partition=0)
        producer.commit_transaction() if commits else producer.abort_transaction()
    producer.close()
    source = open_training(job(kafka_broker.bootstrap, topic), rank=0, trainers=1)
    start = time.monotonic()
    assert drain(source) == [1, 2]
    assert time.monotonic() - start < 10


def test_deleted_messages_are_refused_when_they_are_met(kafka_broker, topic, csv):
    produce(csv, kafka_broker.bootstrap, topic, limit=90)
    admin = KafkaAdminClient(bootstrap_servers=kafka_broker.bootstrap)
    admin.delete_records({TopicPartition(topic, 2): 10})
    admin.close()
    spec = job(kafka_broker.bootstrap, topic)
    with closing(connect(spec, KafkaUrl.parse(spec.data.source))) as stream:
        assert stream.ranges()[2] == (10, 30)
        stream.seek({2: 0})
        with pytest.raises(Damaged, match=f"{topic} on .*: the next messages were deleted"):
            for _ in range(10):
                assert stream.poll(2.0, 512) == {}


def test_a_missing_topic_and_a_missing_broker_are_named(kafka_broker, free_port, monkeypatch):
    with pytest.raises(NotFound, match="topic 'no-such-topic' is not on"):
        open_training(job(kafka_broker.bootstrap, "no-such-topic"), rank=0, trainers=1)
    monkeypatch.setattr(kafka_source, "_REQUEST_SECONDS", 1.0)
    with pytest.raises(Unavailable, match=f"127.0.0.1:{free_port}"):
        open_training(job(f"127.0.0.1:{free_port}", "t"), rank=0, trainers=1)


def test_without_the_extra_the_job_is_told_which_one(kafka_broker, topic, monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.delitem(sys.modules, "trainer_service.sources._confluent", raising=False)
    with pytest.raises(InvalidInput, match=r"data\.kafka_client: .* embermesh\[confluent\]"):
        open_training(job(kafka_broker.bootstrap, topic), rank=0, trainers=1)
