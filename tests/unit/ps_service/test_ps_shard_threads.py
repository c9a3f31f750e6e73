"""Threads that a shard gives to one large request: what the job says, else the CPUs it may use."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import create_autospec

import grpc
import prometheus_client
import pytest

from ps_service.server.assignment import Assignment, threads_of_shard
from ps_service.server.metrics import SparseMetrics
from ps_service.server.sparse import SparseServicer
from ps_service.sharding import ShardMap
from services.api import spec
from services.kit import usage
from services.kit.discovery import Run
from services.kit.errors import InvalidInput
from services.kit.storage import Storage
from services.wire import ps_pb2
from tests.fixtures.ps_batches import TABLES


def assignment(threads: int) -> Assignment:
    document = {
        "name": "threads",
        "model": {"name": "lr"},
        "data": {"source": "synthetic://criteo"},
        "features": {"sparse": {"C1": {}}},
    }
    checked = spec.validate(document).model_dump(mode="json")
    owners = ShardMap.even(64, 1).owners.tolist()
    return Assignment.of_sparse(Run("threads-1", 1, checked, epoch=1, owners=owners), 0, threads)


@pytest.mark.parametrize(
    ("cpus", "threads"), [(0.3, 1), (1.0, 1), (1.9, 1), (2.0, 2), (7.5, 7), (8.0, 8), (96.0, 8)]
)
def test_by_default_the_usable_cpus_count_within_bounds(cpus: float, threads: int) -> None:
    assert threads_of_shard(0, cpus) == threads


def test_a_quota_of_the_container_counts_as_cpus(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert threads_of_shard(0, usage.cpu_limit(tmp_path)) == 1


def test_the_setting_may_name_another_number() -> None:
    assert assignment(0).shard_threads == threads_of_shard(0, usage.cpu_limit())
    assert assignment(3).shard_threads == 3


@pytest.mark.parametrize("threads", [-1, 257])
def test_a_number_out_of_bounds_is_refused_by_name(threads: int) -> None:
    with pytest.raises(InvalidInput, match=f"shard_threads is {threads}, must be 0 to 256"):
        assignment(threads)


def os_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_the_server_makes_its_shard_with_them() -> None:
    started = []
    for threads in (1, 4):
        metrics = SparseMetrics(prometheus_client.CollectorRegistry())
        servicer = SparseServicer(assignment(threads), Storage(), metrics)
        before = os_threads()
        caller = ps_pb2.Caller(generation=1, epoch=1)
        tables = [table.to_proto() for table in TABLES]
        request = ps_pb2.SparseConfigureRequest(caller=caller, seed=1, tables=tables)
        servicer.Configure(request, create_autospec(grpc.ServicerContext))
        started.append(os_threads() - before)
        servicer.close()
    assert started[1] - started[0] == 3
