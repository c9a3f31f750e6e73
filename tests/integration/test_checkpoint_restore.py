"""A checkpoint of real parameter servers, restored into other numbers of them."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import prometheus_client
import redis

from ps_service import _native
from services.checkpoint.config import CheckpointServiceConfig
from services.checkpoint.coordinator import Coordinator
from services.checkpoint.metrics import CheckpointMetrics
from services.kit.discovery import Member, Phase, Registry, Role, Run
from services.kit.storage import Storage
from tests.fakes.fleet import make_run, running
from tests.fixtures.ps_batches import TABLES, plan, random_batch
from tests.fixtures.ps_cluster import PsCluster

ADAM = {**_native.OPTIMIZERS["adam"], "lr": 0.05}
INITIAL = np.full(11, 7, dtype=np.float32)


def train(cluster: PsCluster, steps: range) -> None:
    sparse, dense = cluster.sparse_client(), cluster.dense_client()
    sparse.configure(TABLES, 3)
    dense.configure("adam", ADAM, INITIAL)
    for step in steps:
        batch = random_batch(step, 8)
        keys = plan(cluster.shard_map, batch)
        sparse.pull(keys, step=step)
        sparse.push(keys, keys.scatter(batch.grads), step=step, read_step=step, samples=8)
        dense.push(batch.dense, step=step, samples=8, pause=False)


def announce(cluster: PsCluster, registry: Registry, run: Run) -> None:
    addresses = {
        Role.SPARSE_PS: [served.server.address for served in cluster.sparse],
        Role.DENSE_PS: [served.server.address for served in cluster.dense],
    }
    for role, listed in addresses.items():
        for rank, address in enumerate(listed):
            member = Member(run.job, run.generation, role, rank, address, phase=Phase.READY)
            registry.announce(member, lease_seconds=60)


def test_rows_and_dense_parameters_come_back_in_other_counts(
    redis_db: redis.Redis, tmp_path: Path
) -> None:
    registry, storage = Registry(redis_db), Storage()
    run = make_run(f"file://{tmp_path}", job="real-ab12cd")
    settings = CheckpointServiceConfig(redis_url="", hold_seconds=10, pause_seconds=5)
    metrics = CheckpointMetrics(prometheus_client.CollectorRegistry())
    coordinator = Coordinator(registry, storage, metrics, settings, threading.Event())
    with PsCluster(sparse=3, dense=2) as cluster:
        train(cluster, range(1, 7))
        spec = {**run.spec, "resources": {"sparse_ps": 3, "dense_ps": 2, "trainers": 2}}
        owners = cluster.shard_map.owners.tolist()
        real = Run(run.job, 1, spec, cluster.shard_map.epoch, owners)
        with running(run, registry, storage):  # its trainers; the real servers take their places
            registry.publish_run(real)
            announce(cluster, registry, real)
            taken = coordinator.take(run.job, 1, 0)
        rows, values = cluster.rows(), cluster.dense_values()
        assert taken.rows == sum(int(shard.rows().sum()) for shard in cluster.shards()) > 0

    with PsCluster(sparse=2, dense=3, restore=taken.uri, generation=2) as cluster:
        assert cluster.sparse_client().configure(TABLES, 3) == taken.rows
        restored = cluster.dense_client().configure("adam", ADAM, INITIAL)
        assert cluster.rows() == rows
        np.testing.assert_array_equal(restored, values)
