"""Shards in the trainers' processes: the same rows as remote ones, and no call to one's own."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from services.kit.discovery import Phase, Registry, Role, Run
from services.kit.errors import Conflict, InvalidInput, Unavailable
from services.kit.member import MemberConfig, MemberProcess
from tests.fixtures.ps_batches import TABLES, plan, random_batch
from tests.fixtures.ps_cluster import PsCluster
from tests.fixtures.trainer_rig import Trainer, job, rows, script, train_together

TRAINERS, STEPS = 2, 15


def left_by(embedded: bool, sync: bool, trainers: int) -> tuple[list[bytes], bytes, list[float]]:
    """Rows, dense parameters, and how many pushes each shard answered over gRPC."""
    with PsCluster(sparse=trainers, trainers=trainers, sync=sync) as cluster:
        fleet = [
            Trainer(
                cluster,
                job(16),
                script([rows(16, seed=100 * rank + i) for i in range(STEPS)], rank),
                rank=rank,
                embedded=embedded,
            )
            for rank in range(trainers)
        ]
        train_together(fleet)
        labels = {"service": "SparsePs", "verb": "Push", "code": "OK"}
        calls = [
            s.registry.get_sample_value("embermesh_rpc_total", labels) or 0 for s in cluster.sparse
        ]
        return cluster.rows(), cluster.dense_values().tobytes(), calls


@pytest.mark.parametrize(("sync", "trainers"), [(True, TRAINERS), (False, 1)])
def test_embedded_shards_hold_the_bits_of_remote_ones(sync: bool, trainers: int) -> None:
    *remote, remote_calls = left_by(False, sync, trainers)
    *embedded, embedded_calls = left_by(True, sync, trainers)
    assert embedded == remote
    assert remote_calls == [trainers * STEPS] * trainers
    assert embedded_calls == [(trainers - 1) * STEPS] * trainers


def test_a_failure_of_the_own_shard_is_of_the_family_and_names_it() -> None:
    with PsCluster() as cluster:
        client = cluster.sparse_client(own=cluster.sparse[0].servicer, generation=7)
        with pytest.raises(Conflict, match="sparse-PS 0 of this process: generation 7 calls"):
            client.configure(TABLES, 0)
        good = cluster.sparse_client(own=cluster.sparse[0].servicer)
        with pytest.raises(InvalidInput, match="tables is empty"):
            good.configure([], 0)


def test_a_shard_that_closes_ends_the_wait_of_its_own_trainer() -> None:
    """A sync push waits for the other trainer, which never comes."""
    batch = random_batch(1, 8)
    with PsCluster(trainers=2, sync=True) as cluster, ThreadPoolExecutor(1) as pool:
        servicer = cluster.sparse[0].servicer
        client = cluster.sparse_client(own=servicer, timeout=0.5)
        client.configure(TABLES, 0)
        keys = plan(cluster.shard_map, batch)
        client.pull(keys, step=1)
        waiting = pool.submit(
            client.push, keys, keys.scatter(batch.grads), step=1, read_step=1, samples=8
        )
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
        servicer.close()
        with pytest.raises(Unavailable, match="of this process"):
            waiting.result(10)


def test_stop_ends_the_wait_for_the_own_shard() -> None:
    stop = threading.Event()
    batch = random_batch(1, 8)
    with PsCluster(trainers=2, sync=True) as cluster, ThreadPoolExecutor(1) as pool:
        client = cluster.sparse_client(own=cluster.sparse[0].servicer, stop=stop)
        client.configure(TABLES, 0)
        keys = plan(cluster.shard_map, batch)
        waiting = pool.submit(
            client.push, keys, keys.scatter(batch.grads), step=1, read_step=1, samples=8
        )
        stop.set()
        with pytest.raises(Unavailable, match="this process is stopping"):
            waiting.result(10)


def test_the_shard_in_a_trainer_has_a_lease_of_its_own(redis_db: Any, redis_url: str) -> None:
    registry = Registry(redis_db)
    run = Run("emb-1", 1, {}, epoch=1, owners=[0])
    settings = MemberConfig("emb-1", 1, 3, redis_url)
    process = MemberProcess(Role.TRAINER, settings, registry, run)
    process.update(address="host:5")
    process.start()
    process.serve_also(Role.SPARSE_PS, lambda: {"rows": 8})
    shard, trainer = registry.members("emb-1", 1)
    assert (shard.role, shard.rank, shard.address) == (Role.SPARSE_PS, 3, "host:5")
    assert (shard.phase, shard.status, shard.metrics_address) == (Phase.READY, {"rows": 8}, "")
    assert (trainer.role, trainer.phase) == (Role.TRAINER, Phase.STARTING)
    assert trainer.metrics_address
    process.close(Conflict("broken"))
    (last,) = registry.members("emb-1", 1)
    assert (last.role, last.phase) == (Role.TRAINER, Phase.FAILED)
