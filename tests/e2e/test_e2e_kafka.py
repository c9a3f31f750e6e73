"""A Kafka job is stopped midway and restored with other counts, and its trainers are killed: every
row trains exactly once.
"""

from __future__ import annotations

import os
import random
import re
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from embermesh.client import Client
from embermesh.cluster import LocalCluster
from services.api.views import JobState, JobView
from tests.e2e.waiting import until
from tests.fixtures.kafka_broker import KafkaBroker
from tests.fixtures.row_counts import counting_job, produce_rows, updates_of_rows

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
ROWS, PARTITIONS = 60_000, 6
KILLS, WAITING = 10, 15_000
AHEAD = 2 * 2 * 16  # trainers, batches that each reads ahead, rows of one


def test_no_row_is_skipped_or_trained_twice_across_a_stop(
    kafka_broker: KafkaBroker,
    client: Client,
    wait_samples: Callable[[str, int], JobView],
    tmp_path: Path,
) -> None:
    kafka_broker.create_topic("clicks", PARTITIONS)
    produce_rows(kafka_broker, "clicks", PARTITIONS, range(ROWS))
    spec = counting_job(
        kafka_broker,
        "clicks",
        training={"mode": "hybrid", "batch_size": 16},
        resources={"sparse_ps": 2, "dense_ps": 1, "trainers": 2},
        checkpoint={"to": f"file://{tmp_path / 'checkpoints'}", "keep": 5},
    )
    job = client.submit(spec)
    wait_samples(job.id, 2_000)
    middle = client.checkpoint(job.id)
    assert client.get(job.id).state == JobState.RUNNING, "the stop must come before the end"
    client.cancel(job.id)
    assert client.wait(job.id, 60).state == JobState.CANCELLED
    assert 2_000 <= middle.samples < ROWS
    first_part = updates_of_rows(middle.uri)
    trained = [row for row, updates in first_part.items() if updates]
    assert len(trained) == middle.samples and set(first_part.values()) <= {0, 1}
    assert len(first_part) <= middle.samples + AHEAD, "besides them only rows read ahead"

    client.restore(job.id, sparse_ps=3, trainers=3)
    done = client.wait(job.id, 120)
    assert done.state == JobState.SUCCEEDED, done.error
    assert done.progress.samples == ROWS
    assert done.checkpoint is not None
    assert updates_of_rows(done.checkpoint.uri) == dict.fromkeys(range(ROWS), 1)


class Feeder:
    """Keeps a job's trainers busy: rows beyond those trained are always waiting in the topic."""

    def __init__(self, broker: KafkaBroker, topic: str, trained: Callable[[], int]) -> None:
        self.produced = 0
        self._broker, self._topic, self._trained = broker, topic, trained
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Ends; the number of rows in the topic."""
        self._stop.set()
        self._thread.join(timeout=30)
        assert not self._thread.is_alive()
        return self.produced

    def _work(self) -> None:
        while not self._stop.wait(0.2):
            if self.produced < self._trained() + WAITING // 2:
                rows = range(self.produced, self.produced + WAITING)
                produce_rows(self._broker, self._topic, PARTITIONS, rows)
                self.produced = rows.stop


@pytest.mark.timeout(480)  # two minutes on two busy cores, most of it the start of trainers
def test_trainers_killed_at_random_neither_skip_nor_double_a_row(
    cluster: LocalCluster, kafka_broker: KafkaBroker, client: Client, tmp_path: Path
) -> None:
    """Ten times one of three trainers dies by SIGKILL in the middle of whatever it does; the job
    goes on in the same generation and never goes back.
    """
    kafka_broker.create_topic("chaos", PARTITIONS)
    job = client.submit(
        counting_job(
            kafka_broker,
            "chaos",
            endless=True,
            training={"mode": "hybrid", "batch_size": 16},
            resources={"sparse_ps": 3, "dense_ps": 2, "trainers": 3},
            checkpoint={"to": f"file://{tmp_path / 'checkpoints'}", "every": "5s"},
            max_restarts=100,
        )
    )
    feeder = Feeder(kafka_broker, "chaos", lambda: client.get(job.id).progress.samples)
    until(lambda: client.get(job.id).state == JobState.RUNNING, seconds=90, what="the start")

    def rows_wait() -> bool:
        return feeder.produced > client.get(job.id).progress.samples

    chance, idle = random.Random(20), threading.Event()
    for kill in range(1, KILLS + 1):
        rank = chance.randrange(3)
        until(partial(at_work, client, job.id, rank), seconds=120, what=f"trainer {rank}")
        idle.wait(chance.uniform(0.1, 1.0))
        until(rows_wait, seconds=30, what="rows to train")
        kill_trainer(cluster, client.get(job.id), rank)
        until(lambda k=kill: client.get(job.id).restarts == k, seconds=30, what=f"word of {kill}")  # type: ignore[misc]
    rows = feeder.stop()
    until(lambda: client.get(job.id).progress.samples >= rows, seconds=150, what=f"{rows} rows")
    last = client.checkpoint(job.id)
    view = client.get(job.id)
    assert (view.state, view.generation, view.restarts) == (JobState.RUNNING, 1, KILLS), view.error
    client.cancel(job.id)
    assert last.samples == rows
    assert updates_of_rows(last.uri) == dict.fromkeys(range(rows), 1)
    assert client.wait(job.id, 60).state == JobState.CANCELLED


def kill_trainer(cluster: LocalCluster, job: JobView, rank: int) -> None:
    """Kills the present process of that rank."""
    folder = cluster.folder / "jobs" / job.id / str(job.generation)
    newest = max(folder.glob(f"trainer-{rank}*.pid"), key=lambda file: file.stat().st_mtime_ns)
    os.kill(int(re.findall(r"\d+", newest.read_text())[0]), signal.SIGKILL)


def at_work(client: Client, job: str, rank: int) -> bool:
    """Whether the present process of that rank takes steps."""
    view = client.get(job)
    assert not view.state.final, view.error
    return any((m.role, m.rank, m.phase) == ("trainer", rank, "ready") for m in view.members)


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
