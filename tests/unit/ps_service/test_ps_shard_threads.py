"""Threads that a shard gives to one large request: what the job says, else the CPUs it may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from ps_service.server.assignment import Assignment, usable_threads
from ps_service.sharding import ShardMap
from services.api import spec
from services.kit import usage
from services.kit.discovery import Run
from services.kit.errors import InvalidInput


def assignment(resources: dict[str, int]) -> Assignment:
    document = {
        "name": "threads",
        "model": {"name": "lr"},
        "data": {"source": "synthetic://criteo"},
        "features": {"sparse": {"C1": {}}},
        "resources": resources,
    }
    checked = spec.validate(document).model_dump(mode="json")
    owners = ShardMap.even(64, 1).owners.tolist()
    return Assignment.of_sparse(Run("threads-1", 1, checked, epoch=1, owners=owners), 0)


@pytest.mark.parametrize(
    ("cpus", "threads"), [(0.3, 1), (1.0, 1), (1.9, 1), (2.0, 2), (7.5, 7), (8.0, 8), (96.0, 8)]
)
def test_by_default_the_usable_cpus_count_within_bounds(cpus: float, threads: int) -> None:
    assert usable_threads(cpus) == threads


def test_a_quota_of_the_container_counts_as_cpus(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert usable_threads(usage.cpu_limit(tmp_path)) == 1


def test_the_job_may_name_another_number() -> None:
    assert assignment({}).shard_threads == usable_threads(usage.cpu_limit())
    assert assignment({"shard_threads": 3}).shard_threads == 3


@pytest.mark.parametrize("threads", [0, 257])
def test_a_number_out_of_bounds_is_refused_by_name(threads: int) -> None:
    with pytest.raises(InvalidInput, match=r"resources\.shard_threads"):
        assignment({"shard_threads": threads})
