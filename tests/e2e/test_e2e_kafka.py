"""A Kafka job is stopped midway and restored with other counts: every row trains exactly once.

Each row has a key of its own, in a table with Adam: the row's state holds how often it was updated.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from kafka import KafkaProducer

from embermesh.client import Client
from ps_service import _native
from ps_service.server import snapshot
from ps_service.server.assignment import Assignment
from ps_service.sharding import ShardMap
from ps_service.tables import table_spec
from services.api import manifest
from services.api.optimizers import OptimizerSpec
from services.api.views import JobState, JobView
from services.kit.storage import Storage
from tests.fixtures.kafka_broker import KafkaBroker

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
ROWS, PARTITIONS, ROWS_PER_MESSAGE = 60_000, 6, 50


def produce(broker: KafkaBroker, topic: str) -> None:
    """ROWS rows with the key `row` = 0, 1, …, in Arrow messages over all partitions."""
    broker.create_topic(topic, PARTITIONS)
    rng = np.random.default_rng(5)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, linger_ms=20)
    for number, first in enumerate(range(0, ROWS, ROWS_PER_MESSAGE)):
        rows = np.arange(first, first + ROWS_PER_MESSAGE)
        price = rng.random(ROWS_PER_MESSAGE, dtype=np.float32)
        label = (rng.random(ROWS_PER_MESSAGE) < price).astype(np.int8)
        batch = pa.record_batch({"label": label, "row": rows, "price": price})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        producer.send(topic, sink.getvalue().to_pybytes(), partition=number % PARTITIONS)
    producer.flush()
    producer.close()


def updates_of_rows(uri: str) -> dict[int, int]:
    """row key -> how often it was updated, read from all shards of a checkpoint."""
    storage, adam = Storage(), OptimizerSpec(name="adam", params={"lr": 0.001})
    saved = manifest.read(storage, uri)
    tables = (table_spec("row", 1, adam, None),)
    shard = _native.SparseShard([t.native() for t in tables], partitions=saved.partitions, seed=0)
    whole = Assignment(
        saved.job, 1, 0, 1, ShardMap.even(saved.partitions, 1), trainers=1, sync=False, restore=uri
    )
    snapshot.read_sparse(storage, uri, shard, tables, whole)
    keys, _, state = shard.export_rows(0)
    return dict(zip(keys.tolist(), state[:, -1].astype(int).tolist(), strict=True))


def test_no_row_is_skipped_or_trained_twice_across_a_stop(
    kafka_broker: KafkaBroker,
    client: Client,
    wait_samples: Callable[[str, int], JobView],
    tmp_path: Path,
) -> None:
    produce(kafka_broker, "clicks")
    spec = {
        "name": "stream",
        "model": {"name": "lr"},
        "data": {"source": f"kafka://{kafka_broker.bootstrap}/clicks", "format": "arrow"},
        "features": {
            "dense": ["price"],
            "sparse": {
                "row": {"dim": 1, "encode": "id", "optimizer": {"adam": {"lr": 0.001}}},
            },
        },
        "training": {"mode": "hybrid", "batch_size": 16},
        "resources": {"sparse_ps": 2, "dense_ps": 1, "trainers": 2},
        "checkpoint": {"to": f"file://{tmp_path / 'checkpoints'}", "keep": 5},
    }
    job = client.submit(spec)
    wait_samples(job.id, 2_000)
    middle = client.checkpoint(job.id)
    assert client.get(job.id).state == JobState.RUNNING, "the stop must come before the end"
    client.cancel(job.id)
    assert client.wait(job.id, 60).state == JobState.CANCELLED
    assert 2_000 <= middle.samples < ROWS
    first_part = updates_of_rows(middle.uri)
    assert len(first_part) == middle.samples and set(first_part.values()) == {1}

    client.restore(job.id, sparse_ps=3, trainers=3)
    done = client.wait(job.id, 120)
    assert done.state == JobState.SUCCEEDED, done.error
    assert done.progress.samples == ROWS
    assert done.checkpoint is not None
    assert updates_of_rows(done.checkpoint.uri) == dict.fromkeys(range(ROWS), 1)


def test_a_broker_that_is_not_there_fails_the_job_with_its_address(
    client: Client, tmp_path: Path
) -> None:
    job = client.submit(
        {
            "name": "nobody",
            "model": {"name": "lr"},
            "data": {"source": "kafka://127.0.0.1:1/clicks", "format": "json"},
            "features": {"sparse": {"row": {"dim": 1}}},
            "max_restarts": 0,
        }
    )
    done = client.wait(job.id, 120)
    assert done.state == JobState.FAILED and "127.0.0.1:1" in done.error
