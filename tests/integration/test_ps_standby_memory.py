"""Memory that stands by in real servers: same rows, and the metrics tell what is left."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from embermesh.processes import wait_until
from ps_service.__main__ import serve_sparse
from ps_service.sharding import ShardMap
from services.api import spec
from services.kit.discovery import Registry, Role, Run
from services.kit.member import MemberConfig, MemberProcess
from tests.fixtures.ps_batches import TABLES, plan, random_batch
from tests.fixtures.ps_cluster import PsCluster

MB = 1 << 20
BYTES, COLD = "embermesh_sparse_standby_bytes", "embermesh_sparse_cold_chunks"


def left_by(embedded: bool, standby_bytes: int) -> tuple[list[bytes], float, float]:
    """Rows after one step, and both metrics: bytes and cold chunks."""
    batch = random_batch(3, 64)
    with PsCluster(standby_bytes=standby_bytes) as cluster:
        served = cluster.sparse[0]

        def value(name: str) -> float:
            sample = served.registry.get_sample_value(name)
            assert sample is not None
            return sample

        assert wait_until(lambda: value(BYTES) == standby_bytes, 20.0, every=0.002)
        client = cluster.sparse_client(own=served.servicer if embedded else None)
        client.configure(TABLES, 5)
        keys = plan(cluster.shard_map, batch)
        client.pull(keys, step=1)
        client.push(keys, keys.scatter(batch.grads), step=1, read_step=1, samples=64)
        return cluster.rows(), value(BYTES), value(COLD)


@pytest.mark.parametrize("embedded", [False, True])
def test_the_rows_are_the_same_and_the_metrics_tell_where_they_are(embedded: bool) -> None:
    rows, standing_by, cold = left_by(embedded, 32 * MB)
    assert 8 * MB <= standing_by < 32 * MB
    assert cold == 0
    usual_rows, standing_by, cold = left_by(embedded, 0)
    assert rows == usual_rows
    assert standing_by == 0
    assert cold > 0


def test_a_process_has_as_much_as_its_setting_says(redis_db: Any, redis_url: str) -> None:
    document = {
        "name": "standby",
        "model": {"name": "lr"},
        "data": {"source": "synthetic://criteo"},
        "features": {"sparse": {"C1": {}}},
    }
    checked = spec.validate(document).model_dump(mode="json")
    owners = ShardMap.even(64, 1).owners.tolist()
    run = Run("standby-1", 1, checked, epoch=1, owners=owners)
    settings = MemberConfig(run.job, 1, 0, redis_url, standby_mb=6)
    process = MemberProcess(Role.SPARSE_PS, settings, Registry(redis_db), run)
    process.start()
    stop = threading.Event()
    serving = threading.Thread(target=serve_sparse, args=(process, stop))
    serving.start()
    try:
        assert wait_until(lambda: process.metrics.get_sample_value(BYTES) == 6 * MB, 20.0)
    finally:
        stop.set()
        serving.join(20.0)
        process.close(None)
    assert not serving.is_alive()
