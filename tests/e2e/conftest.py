"""A local cluster of real processes for whole-job tests, as `embermesh up` starts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embermesh.client import Client
from embermesh.cluster import LocalCluster
from services.api.views import JobView
from tests.e2e.waiting import until
from tests.fixtures.ports import find_free_port

Spec = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("cluster"))
    cluster.up(port=find_free_port())
    yield cluster
    cluster.down()


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    state = cluster.state()
    assert state is not None
    with Client(state.url) as client:
        yield client


@pytest.fixture
def wait_samples(client: Client) -> Callable[[str, int], JobView]:
    """Waits until a job has trained so many rows and still goes on."""

    def wait(job: str, samples: int) -> JobView:
        def enough() -> JobView | None:
            view = client.get(job)
            assert not view.state.final, f"{view.state} too early: {view.error}"
            return view if view.progress.samples >= samples else None

        return until(enough, seconds=90, what=f"{samples} samples of {job}")

    return wait


@pytest.fixture
def synthetic_job(tmp_path: Path) -> Callable[..., Spec]:
    """A small synthetic job with checkpoints in the test's folder; keyword groups are merged in."""

    def make(rows: int = 20_000, **groups: Any) -> Spec:
        spec: Spec = {
            "name": "small",
            "model": {"name": "deepfm", "hidden": [32, 16]},
            "data": {"source": f"synthetic://criteo?rows={rows}&holdout=5000"},
            "features": {"dense": "I1..I13", "sparse": {"C1..C26": {"dim": 4, "encode": "id"}}},
            "training": {"mode": "hybrid", "batch_size": 128, "seed": 3},
            "resources": {"sparse_ps": 2, "dense_ps": 1, "trainers": 2},
            "checkpoint": {"to": f"file://{tmp_path / 'checkpoints'}", "keep": 3},
        }
        for name, group in groups.items():
            spec[name] = {**spec.get(name, {}), **group} if isinstance(group, dict) else group
        return spec

    return make
