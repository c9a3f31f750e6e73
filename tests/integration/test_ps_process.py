"""`python -m ps_service` as real processes: lease, configuration from the run, drain on SIGTERM."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ps_service.client.dense import DenseClient
from ps_service.client.sparse import SparseClient
from ps_service.sharding import ShardMap
from services.api import spec
from services.kit import config
from services.kit.discovery import Member, Registry, Role, Run
from services.kit.errors import EmbermeshError
from services.kit.member import MemberConfig
from tests.fixtures.ps_batches import TABLES, plan, random_batch

ROOT = Path(__file__).resolve().parents[2]
SPEC = {
    "name": "proc",
    "model": {"name": "deepfm"},
    "data": {"source": "synthetic://criteo"},
    "features": {"dense": "I1", "sparse": {"C1": {"dim": 4}}},
    "training": {"mode": "sync"},
    "resources": {"sparse_ps": 1, "dense_ps": 1, "trainers": 2},
}
ROLES = {Role.SPARSE_PS: "sparse", Role.DENSE_PS: "dense"}


@pytest.fixture
def run(redis_db) -> Run:
    owners = ShardMap.even(64, 1).owners.tolist()
    document = spec.validate(SPEC).model_dump(mode="json")
    attempt = Run("proc-1", 3, document, epoch=2, owners=owners)
    Registry(redis_db).publish_run(attempt)
    return attempt


@pytest.fixture
def processes(run: Run, redis_url: str) -> Iterator[dict[Role, subprocess.Popen[bytes]]]:
    settings = MemberConfig(job=run.job, generation=run.generation, rank=0, redis_url=redis_url)
    env = {**config.inherited(), **config.environment(settings)}
    started = {
        role: subprocess.Popen([sys.executable, "-m", "ps_service", word], env=env, cwd=ROOT)
        for role, word in ROLES.items()
    }
    yield started
    for process in started.values():
        process.kill()
        process.wait(10)


@pytest.fixture
def members(run: Run, processes, redis_db) -> dict[Role, Member]:
    registry, never = Registry(redis_db), threading.Event()
    return {
        role: registry.wait_members(run.job, run.generation, role, 1, 30, never)[0]
        for role in processes
    }


def test_processes_serve_a_run_and_drain_on_sigterm(run: Run, processes, members) -> None:
    caller: dict[str, Any] = {"generation": 3, "epoch": 2, "rank": 1, "timeout": 2}
    sparse = SparseClient([members[Role.SPARSE_PS].address], **caller)
    dense = DenseClient([members[Role.DENSE_PS].address], **caller)
    batch = random_batch(1, 4)
    keys = plan(ShardMap.from_run(run), batch)
    with sparse, dense, ThreadPoolExecutor(2) as pool:
        assert sparse.has_bypass(0) and dense.has_bypass(0)
        assert sparse.configure(TABLES, 0) == 0
        initial = np.arange(3, dtype=np.float32)
        np.testing.assert_array_equal(dense.configure("sgd", {"lr": 0.1}, initial), initial)
        assert sparse.pull(keys, step=1).shape == (keys.value_floats,)
        assert dense.trainers() == 2
        page = urllib.request.urlopen(
            f"http://{members[Role.SPARSE_PS].metrics_address}/metrics", timeout=5
        )
        assert b'embermesh_sparse_rows{table="users"}' in page.read()
        # Rank 0 never comes: both pushes wait at their barriers when SIGTERM arrives.
        grads = keys.scatter(batch.grads)
        waiting: list[Future] = [
            pool.submit(sparse.push, keys, grads, step=1, read_step=1, samples=4),
            pool.submit(dense.push, initial, step=1, samples=4, pause=False),
        ]
        for process in processes.values():
            process.send_signal(signal.SIGTERM)
        assert [p.wait(15) for p in processes.values()] == [0, 0]
        for push in waiting:
            with pytest.raises(EmbermeshError):
                push.result(10)


def test_process_of_an_old_generation_ends_with_a_fault(run: Run, redis_url: str) -> None:
    settings = MemberConfig(job=run.job, generation=2, rank=0, redis_url=redis_url)
    done = subprocess.run(
        [sys.executable, "-m", "ps_service", "dense"],
        env={**config.inherited(), **config.environment(settings)},
        cwd=ROOT,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert b"at generation 3, not 2" in done.stderr


def test_unknown_role_is_a_usage_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ps_service", "spares"],
        cwd=ROOT,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert b"invalid choice: 'spares'" in done.stderr
