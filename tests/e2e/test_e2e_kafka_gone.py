"""The broker dies in the middle of a job and comes back on its data: every row trains once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from embermesh.client import Client
from services.api.views import JobState
from tests.e2e.waiting import until
from tests.fixtures.kafka_broker import KafkaBroker, find_java
from tests.fixtures.row_counts import counting_job, produce_rows, updates_of_rows

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]
PARTITIONS, ROWS = 4, 8_000


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    """A broker that a test may kill."""
    broker = KafkaBroker(tmp_path, find_java())
    broker.format()
    broker.start()
    yield broker
    broker.stop(grace=0)


@pytest.mark.parametrize(
    ("kafka_client", "seconds"),
    [
        ("kafka-python", 8),
        ("kafka-python", 60),
        ("confluent", 60),
    ],
)
def test_the_broker_is_gone_while_a_job_trains(
    own_broker: KafkaBroker, client: Client, tmp_path: Path, kafka_client: str, seconds: float
) -> None:
    own_broker.create_topic("clicks", PARTITIONS)
    produce_rows(own_broker, "clicks", PARTITIONS, range(ROWS))
    spec = counting_job(
        own_broker,
        "clicks",
        endless=True,
        training={"mode": "hybrid", "batch_size": 16},
        resources={"sparse_ps": 1, "dense_ps": 1, "trainers": 2},
        checkpoint={"to": f"file://{tmp_path / 'checkpoints'}"},
    )
    spec["data"]["kafka_client"] = kafka_client
    job = client.submit(spec).id
    until(lambda: client.get(job).progress.samples > 500, seconds=120, what="the first rows")
    own_broker.stop(grace=0)
    during = client.checkpoint(job)
    threading.Event().wait(seconds)
    own_broker.start()
    produce_rows(own_broker, "clicks", PARTITIONS, range(ROWS, 2 * ROWS))
    until(lambda: client.get(job).progress.samples >= 2 * ROWS, seconds=200, what="all the rows")
    last = client.checkpoint(job)
    view = client.get(job)
    assert (view.state, view.generation, view.restarts) == (JobState.RUNNING, 1, 0), view.error
    assert during.samples <= last.samples == 2 * ROWS
    assert updates_of_rows(last.uri) == dict.fromkeys(range(2 * ROWS), 1)
    client.cancel(job)
    assert client.wait(job, 60).state == JobState.CANCELLED
