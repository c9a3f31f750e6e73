"""Shards and blocks in the trainers' processes: the same bits as remote ones, and no call to one's
own.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from ps_service.server.assignment import Pace
from services.kit.discovery import Phase, Registry, Role, Run
from services.kit.errors import Conflict, InvalidInput, Unavailable
from services.kit.member import MemberConfig, MemberProcess
from tests.fixtures.ps_batches import TABLES, plan, random_batch
from tests.fixtures.ps_cluster import PsCluster
from tests.fixtures.trainer_rig import Trainer, job, rows, script, train_together

TRAINERS, STEPS = 2, 15


def left_by(
    embedded: bool, sync: bool, trainers: int, pace: Pace, blocks: int
) -> tuple[list[bytes], bytes, list[float]]:
    """Rows, dense parameters, and how many pushes each server answered over gRPC."""
    with PsCluster(
        sparse=trainers, dense=blocks, trainers=trainers, sync=sync, pace=pace
    ) as cluster:
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
        calls = []
        for service, servers in (("SparsePs", cluster.sparse), ("DensePs", cluster.dense)):
            verb = "Merge" if service == "DensePs" and pace is Pace.MERGED else "Push"
            labels = {"service": service, "verb": verb, "code": "OK"}
            for served in servers:
                value = served.registry.get_sample_value("embermesh_rpc_total", labels)
                calls.append(value or 0)
        return cluster.rows(), cluster.dense_values().tobytes(), calls


@pytest.mark.parametrize(
    ("sync", "trainers", "pace", "blocks"),
    [
        (True, TRAINERS, Pace.TOGETHER, 1),
        (True, TRAINERS, Pace.TOGETHER, 3),
        (False, 1, Pace.TOGETHER, 1),
        (False, 1, Pace.TOGETHER, 2),
        (False, 1, Pace.ON_ARRIVAL, 1),
        (False, 1, Pace.MERGED, 1),
    ],
)
def test_embedded_servers_hold_the_bits_of_remote_ones(
    sync: bool, trainers: int, pace: Pace, blocks: int
) -> None:
    *remote, remote_calls = left_by(False, sync, trainers, pace, blocks)
    *embedded, embedded_calls = left_by(True, sync, trainers, pace, blocks)
    assert embedded == remote
    assert min(remote_calls) > 0
    assert remote_calls[:trainers] == [trainers * STEPS] * trainers
    others = [(trainers - 1) / trainers] * (trainers + min(blocks, trainers))
    others += [1.0] * (blocks - trainers)
    shares = zip(remote_calls, others, strict=True)
    assert embedded_calls == [calls * share for calls, share in shares]


def test_a_failure_of_the_own_shard_is_of_the_family_and_names_it() -> None:
    with PsCluster() as cluster:
        client = cluster.sparse_client(own=cluster.sparse[0].servicer, generation=7)
        with pytest.raises(Conflict, match="sparse-PS 0 of this process: generation 7 calls"):
            client.configure(TABLES, 0)
        good = cluster.sparse_client(own=cluster.sparse[0].servicer)
        with pytest.raises(InvalidInput, match="tables is empty"):
            good.configure([], 0)


def test_rows_that_travel_with_fewer_bits_are_rounded_in_the_own_shard_too() -> None:
    """So that sync has the same bits however the shards are placed."""
    batch = random_batch(1, 64)
    pulled, left = [], []
    for embedded in (False, True):
        with PsCluster() as cluster:
            own = cluster.sparse[0].servicer if embedded else None
            client = cluster.sparse_client(own=own, values="fp16")
            client.configure(TABLES, 3)
            keys = plan(cluster.shard_map, batch)
            pulled.append(client.pull(keys, step=1).tobytes())
            client.push(keys, keys.scatter(batch.grads), step=1, read_step=1, samples=64)
            left.append(cluster.rows())
    assert pulled[0] == pulled[1]
    assert left[0] == left[1]


def test_a_failure_of_the_own_block_is_of_the_family_and_names_it() -> None:
    values = np.zeros(4, np.float32)
    with PsCluster() as cluster:
        client = cluster.dense_client(own=cluster.dense[0].servicer)
        client.configure("sgd", {"lr": 0.1}, values)
        client.push(values, step=1, samples=1, pause=False)
        with pytest.raises(Conflict, match=r"dense-PS 0 of this process: .*step 7.*next step is 2"):
            client.push(values, step=7, samples=1, pause=False)
        client.push(values, step=2, samples=1, pause=False)


def test_stop_ends_the_wait_for_the_own_block() -> None:
    """A push in mode hybrid waits for the other trainer, which never comes."""
    stop, values = threading.Event(), np.zeros(4, np.float32)
    with PsCluster(trainers=2) as cluster, ThreadPoolExecutor(1) as pool:
        client = cluster.dense_client(own=cluster.dense[0].servicer, stop=stop)
        client.configure("sgd", {"lr": 0.1}, values)
        waiting = pool.submit(client.push, values, step=1, samples=1, pause=False)
        stop.set()
        with pytest.raises(Unavailable, match="this process is stopping"):
            waiting.result(10)


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
    process.serve_also(Role.DENSE_PS, lambda: {"version": 9})
    members = {m.role: m for m in registry.members("emb-1", 1)}
    shard, trainer = members[Role.SPARSE_PS], members[Role.TRAINER]
    assert members[Role.DENSE_PS].status == {"version": 9}
    assert (shard.role, shard.rank, shard.address) == (Role.SPARSE_PS, 3, "host:5")
    assert (shard.phase, shard.status, shard.metrics_address) == (Phase.READY, {"rows": 8}, "")
    assert (trainer.role, trainer.phase) == (Role.TRAINER, Phase.STARTING)
    assert trainer.metrics_address
    process.close(Conflict("broken"))
    (last,) = registry.members("emb-1", 1)
    assert (last.role, last.phase) == (Role.TRAINER, Phase.FAILED)
