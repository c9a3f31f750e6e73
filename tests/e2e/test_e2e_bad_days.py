"""Days on which what a job stands on goes away: Redis, the disk, its own processes. The job goes
on, or says why not, and nothing of it is lost.

Those that aren't `slow` run with all tests; the others last as long as people's bad days do.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crc32c
import httpx
import pytest

from embermesh.client import Client
from embermesh.cluster import LocalCluster
from embermesh.processes import ProcessId
from services.api import manifest as manifests
from services.api.views import JobState, JobView
from services.kit.errors import EmbermeshError, Unavailable
from services.kit.storage import Storage
from tests.e2e.waiting import until
from tests.fixtures.row_counts import updates_of_rows

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
Spec = dict[str, Any]
Make = Callable[..., Spec]
Wait = Callable[[str, int], JobView]
LONG = 100_000_000  # rows: for as long as a test wants
SMALL = {"sparse_ps": 1, "dense_ps": 1, "trainers": 1}


def trained(job: JobView) -> float:
    """Rows that the trainer itself says it has trained in this generation."""
    (trainer,) = (m for m in job.members if m.role == "trainer")
    page = httpx.get(f"http://{trainer.metrics_address}/metrics", trust_env=False).text
    found = re.search(r"^embermesh_trainer_samples_total (\S+)", page, re.M)
    assert found
    return float(found[1])


@contextlib.contextmanager
def redis_gone(cluster: LocalCluster, how: str) -> Iterator[None]:
    """Without Redis inside the block: killed, and started again on its data; or stopped like a
    machine that swaps, with all connections open.
    """
    state = cluster.state()
    assert state is not None
    pid = state.services["redis"].id.pid
    os.kill(pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    try:
        yield
    finally:
        if how == "killed":
            cluster.up()
        else:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("how", "seconds"),
    [
        ("killed", 8),
        pytest.param("frozen", 8, marks=pytest.mark.slow),
        pytest.param("killed", 60, marks=pytest.mark.slow),
        pytest.param("frozen", 60, marks=pytest.mark.slow),
    ],
)
def test_redis_is_gone_while_a_job_trains(
    cluster: LocalCluster,
    client: Client,
    synthetic_job: Make,
    wait_samples: Wait,
    how: str,
    seconds: float,
) -> None:
    job = client.submit(synthetic_job(rows=LONG, resources=SMALL)).id
    before = wait_samples(job, 5_000)
    checkpoint = client.checkpoint(job)
    told = [event.id for event in client.events(job)]
    end = time.monotonic() + seconds
    with redis_gone(cluster, how):
        start = trained(before)
        asked = time.monotonic()
        with pytest.raises(Unavailable, match="Redis: could not"):
            client.get(job)
        assert time.monotonic() - asked < 25, "no request hangs on a Redis that is away"
        until(lambda: time.monotonic() >= end, seconds=seconds + 5, what="the end of the outage")
        assert trained(before) > start, "training needs no Redis"

    def back() -> JobView | None:
        with contextlib.suppress(Unavailable):
            view = client.get(job)
            return view if len(view.members) == 3 else None
        return None

    after = until(back, seconds=40, what="the job's processes in Redis")
    until(client.ready, seconds=10, what="the gateway's readiness")
    assert (after.state, after.generation, after.restarts) == (JobState.RUNNING, 1, 0)
    assert after.checkpoint == checkpoint, "what Redis knew it knows"
    assert [event.id for event in client.events(job)][: len(told)] == told
    later = until(lambda: taken(client, job), seconds=60, what="a checkpoint")
    assert later.samples > checkpoint.samples
    assert client.get(job).generation == 1
    client.cancel(job)
    assert client.wait(job, 60).state == JobState.CANCELLED


def taken(client: Client, job: str) -> Any:
    """A checkpoint, once the services that lost Redis have found it again."""
    with contextlib.suppress(EmbermeshError):
        return client.checkpoint(job)
    return None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 32 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_costs_one_checkpoint_and_nothing_else(
    client: Client, synthetic_job: Make, wait_samples: Wait, small_disk: Path
) -> None:
    to = f"file://{small_disk}/checkpoints"
    job = client.submit(synthetic_job(rows=LONG, resources=SMALL, checkpoint={"to": to})).id
    wait_samples(job, 5_000)
    good = client.checkpoint(job)
    before = verified(good.uri)
    ballast = small_disk / "somebody-elses"
    with ballast.open("wb") as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(65_536))
            file.flush()
    free = re.compile(
        rf"No space left on device.* \((\d+) of 33554432 bytes are free in {small_disk}"
    )
    with pytest.raises(Unavailable, match=free) as refused:
        client.checkpoint(job)
    assert "can't write" in str(refused.value)
    said = [e.message for e in client.events(job) if e.kind == "checkpoint-failed"]
    assert len(said) == 1 and free.search(said[0]), said
    assert [c.uri for c in client.checkpoints(job)] == [good.uri]
    assert verified(good.uri) == before
    at = client.get(job).progress.samples
    going = wait_samples(job, at + 2_000)
    assert (going.generation, going.restarts, going.state) == (1, 0, JobState.RUNNING)

    ballast.unlink()
    again = client.checkpoint(job)
    assert again.samples > good.samples
    verified(again.uri)
    client.cancel(job)
    assert client.wait(job, 60).state == JobState.CANCELLED


def verified(uri: str) -> dict[str, int]:
    """Checksum of each file of a checkpoint, all of which are as the manifest says."""
    storage = Storage()
    manifest, folder = manifests.read(storage, uri), uri.rsplit("/", 1)[0]
    files = (*manifest.sparse, *manifest.dense)
    found = {f.name: crc32c.crc32c(storage.read(f"{folder}/{f.name}")) for f in files}
    assert found == {f.name: f.crc32c for f in files}
    return found


@pytest.mark.parametrize(
    ("rows", "kills", "every"),
    [
        pytest.param(20_000, 2, 3.0, marks=pytest.mark.slow, id="a moment"),
        pytest.param(
            300_000, 30, 10.0, marks=[pytest.mark.slow, pytest.mark.timeout(900)], id="5 minutes"
        ),
    ],
)
def test_random_processes_killed_again_and_again_lose_and_double_no_row(
    cluster: LocalCluster, client: Client, tmp_path: Path, rows: int, kills: int, every: float
) -> None:
    spec = counting_file_job(tmp_path, rows)
    job = client.submit(spec).id
    chance, idle, killed = random.Random(5), threading.Event(), 0
    until(lambda: client.get(job).checkpoint, seconds=120, what="the first checkpoint")
    for _ in range(kills):
        idle.wait(every)
        view = client.get(job)
        if view.state.final:
            break
        killed += kill_one(cluster, view, chance)
    done = client.wait(job, 300)
    assert done.state == JobState.SUCCEEDED, done.error
    # Before a restart, which waits up to 30 s, there is nobody to kill.
    assert killed >= kills // 3, "the job was over before its bad day was"
    assert 1 <= done.restarts <= kills
    assert done.progress.samples == rows
    assert done.checkpoint is not None
    assert updates_of_rows(done.checkpoint.uri) == dict.fromkeys(range(rows), 1)


def counting_file_job(folder: Path, rows: int) -> Spec:
    """Each row has a key of its own, whose optimizer state counts how often it was trained."""
    clicks = folder / "clicks.csv"
    clicks.write_text("label,price,row\n" + "".join(f"{i % 2},0.5,{i}\n" for i in range(rows)))
    return {
        "name": "chaos",
        "model": {"name": "lr"},
        "data": {"source": f"file://{clicks}"},
        "features": {
            "dense": ["price"],
            "sparse": {"row": {"dim": 1, "encode": "id", "optimizer": {"adam": {"lr": 0.001}}}},
        },
        "training": {"mode": "hybrid", "batch_size": 8},
        "resources": {"sparse_ps": 2, "dense_ps": 1, "trainers": 2},
        "checkpoint": {"to": f"file://{folder / 'checkpoints'}", "every": "1s"},
        "max_restarts": 100,
    }


def kill_one(cluster: LocalCluster, job: JobView, chance: random.Random) -> bool:
    """Kills a random process of the job's generation; whether one was alive."""
    folder = cluster.folder / "jobs" / job.id / str(job.generation)
    texts = [path.read_text() for path in sorted(folder.glob("*.pid"))]
    alive = [p for p in (ProcessId.from_text(t) for t in texts if t.count("\n") > 1) if p.alive()]
    if not alive:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(chance.choice(alive).pid, signal.SIGKILL)
    return True
