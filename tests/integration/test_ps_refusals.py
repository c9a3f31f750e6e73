"""What the parameter servers refuse: the field is named, the rest stays intact."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from ps_service.client.sparse import SparseClient
from ps_service.sharding import ShardMap
from ps_service.tables import table_spec
from services.kit import errors, rpc
from services.kit.errors import Conflict, DeadlineExceeded, InvalidInput, Unavailable
from services.wire import ps_pb2, ps_pb2_grpc
from tests.fixtures.ps_batches import ADAGRAD, TABLES, plan, random_batch
from tests.fixtures.ps_cluster import PsCluster

CALLER = ps_pb2.Caller(generation=1, epoch=1, rank=0, step=1)
VALUES = np.zeros(4, np.float32)


@pytest.fixture
def cluster():
    with PsCluster(sparse=1, dense=1) as running:
        running.sparse_client().configure(TABLES, 0)
        running.dense_client().configure("sgd", {"lr": 0.1}, VALUES)
        yield running


def ask(address: str, stub: type, verb: str, request) -> None:
    """One raw call, so that a request may be malformed in a way our clients never are."""
    with rpc.connect(address) as channel:
        rpc.call(getattr(stub(channel), verb), request, peer="server", timeout=10)


@pytest.mark.parametrize(
    ("verb", "request_", "message"),
    [
        (
            "Pull",
            ps_pb2.SparsePullRequest(caller=CALLER, counts=[1, 0], keys=bytes(8)),
            "counts has 2 entries, expected 3 tables",
        ),
        (
            "Pull",
            ps_pb2.SparsePullRequest(caller=CALLER, counts=[1, 0, 2], keys=bytes(16)),
            "keys has 16 bytes, expected 24",
        ),
        (
            "Pull",
            ps_pb2.SparsePullRequest(caller=CALLER, counts=[2**26, 0, 0], keys=bytes(8)),
            "counts ask for 1073741824 bytes of rows, a message holds 1073741824",
        ),
        (
            "Pull",
            ps_pb2.SparsePullRequest(caller=CALLER, counts=[2**32 - 1] * 3),
            "counts ask for",
        ),
        (
            "Push",
            ps_pb2.SparsePushRequest(caller=CALLER, counts=[1, 1, 0], keys=bytes(15)),
            "keys has 15 bytes, expected 16",
        ),
        (
            "Push",
            ps_pb2.SparsePushRequest(
                caller=CALLER, counts=[1, 1, 0], keys=bytes(16), grads=bytes(20)
            ),
            "grads has 20 bytes, expected 24",
        ),
        (
            "Push",
            ps_pb2.SparsePushRequest(caller=CALLER, counts=[0, 0, 0], read_step=2),
            "read_step is 2, must be <= step 1",
        ),
        (
            "Push",
            ps_pb2.SparsePushRequest(
                caller=CALLER,
                counts=[0, 0, 0],
                then=[ps_pb2.SparsePullRequest(caller=CALLER, counts=[1, 0, 0], keys=bytes(7))],
            ),
            "keys has 7 bytes, expected 8",
        ),
    ],
)
def test_malformed_sparse_request_names_the_field(cluster, verb, request_, message) -> None:
    with pytest.raises(InvalidInput, match=message):
        ask(cluster.sparse[0].server.address, ps_pb2_grpc.SparsePsStub, verb, request_)
    assert cluster.sparse[0].servicer.status()["rows"] == 0


@pytest.mark.parametrize(
    ("verb", "request_", "message"),
    [
        (
            "Push",
            ps_pb2.DensePushRequest(caller=CALLER, samples=1, grads=bytes(12)),
            "grads has 12 bytes, expected 16",
        ),
        (
            "Configure",
            ps_pb2.DenseConfigureRequest(caller=CALLER, optimizer="sgd", values=bytes(15)),
            "values has 15 bytes, expected a multiple of 4",
        ),
    ],
)
def test_malformed_dense_request_names_the_field(cluster, verb, request_, message) -> None:
    with pytest.raises(InvalidInput, match=message):
        ask(cluster.dense[0].server.address, ps_pb2_grpc.DensePsStub, verb, request_)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"generation": 2}, "generation 2 calls, this server is of 1"),
        ({"epoch": 5}, "epoch 5 calls, the shard map is at 1"),
    ],
)
def test_stale_callers_are_refused_by_every_verb(cluster, other, message) -> None:
    sparse, dense = cluster.sparse_client(**other), cluster.dense_client(**other)
    batch = random_batch(1, 4)
    keys = plan(cluster.shard_map, batch)
    grads = keys.scatter(batch.grads)
    for action in (
        lambda: sparse.configure(TABLES, 0),
        lambda: sparse.pull(keys, step=1),
        lambda: sparse.push(keys, grads, step=1, read_step=1, samples=4),
        lambda: sparse.leave(1),
        lambda: dense.configure("sgd", {"lr": 0.1}, VALUES),
        lambda: dense.pull(),
        lambda: dense.push(VALUES, step=1, samples=1, pause=False),
        lambda: dense.leave(1),
    ):
        with pytest.raises(Conflict, match=message):
            action()
    caller = ps_pb2.Caller(**{"generation": 1, "epoch": 1, **other})
    snapshot = ps_pb2.SnapshotRequest(caller=caller, uri="file:///never-written.emb")
    for served, stub in (
        (cluster.sparse[0], ps_pb2_grpc.SparsePsStub),
        (cluster.dense[0], ps_pb2_grpc.DensePsStub),
    ):
        for verb in ("BeginSnapshot", "Snapshot", "DropSnapshot"):
            with pytest.raises(Conflict, match=message):
                ask(served.server.address, stub, verb, snapshot)


def test_verbs_before_configure_are_refused() -> None:
    batch = random_batch(1, 4)
    with PsCluster() as cluster:
        sparse, dense = cluster.sparse_client(), cluster.dense_client()
        keys = plan(cluster.shard_map, batch)
        with pytest.raises(Conflict, match="sparse-PS shard 0 is not configured yet"):
            sparse.pull(keys, step=1)
        with pytest.raises(Conflict, match="dense-PS block 0 is not configured yet"):
            dense.pull()
        with pytest.raises(Conflict, match="call configure first"):
            dense.push(VALUES, step=1, samples=1, pause=False)


def test_second_configure_must_agree(cluster) -> None:
    sparse, dense = cluster.sparse_client(), cluster.dense_client()
    assert sparse.configure(TABLES, 0) == 0
    with pytest.raises(Conflict, match="seed 1 differs from the configured 0"):
        sparse.configure(TABLES, 1)
    with pytest.raises(Conflict, match="2 tables differ from the configured 3"):
        sparse.configure(TABLES[:2], 0)
    other = table_spec("users", 5, ADAGRAD, None)
    with pytest.raises(Conflict, match=r"table .*'users', dim=5.* differs from .*dim=4"):
        sparse.configure([other, *TABLES[1:]], 0)
    with pytest.raises(Conflict, match=r"lr.*differs from the configured"):
        dense.configure("sgd", {"lr": 0.2}, VALUES)
    with pytest.raises(Conflict, match=r"size=5.* differs from the configured"):
        dense.configure("sgd", {"lr": 0.1}, np.zeros(5, np.float32))


def test_configure_with_bad_tables_is_refused() -> None:
    with PsCluster() as cluster:
        client = cluster.sparse_client()
        with pytest.raises(InvalidInput, match="tables is empty"):
            client.configure([], 0)
        with pytest.raises(InvalidInput, match="users"):
            client.configure([TABLES[0], TABLES[0]], 0)
        with pytest.raises(InvalidInput, match=r"dense: .*lion"):
            cluster.dense_client().configure("lion", {}, VALUES)
        assert client.configure(TABLES, 0) == 0


@pytest.mark.parametrize("sync", [False, True])
def test_trainer_out_of_step_is_refused(sync: bool) -> None:
    batch = random_batch(1, 4)
    with PsCluster(sync=sync) as cluster:
        client = cluster.sparse_client()
        client.configure(TABLES, 0)
        keys = plan(cluster.shard_map, batch)
        grads = keys.scatter(batch.grads)
        with pytest.raises(Conflict, match="rank 0 is ahead: it pushes step 2, its next step is 1"):
            client.push(keys, grads, step=2, read_step=2, samples=4)
        stranger = cluster.sparse_client(rank=1)
        with pytest.raises(Conflict, match="rank 1 pushes step 1 but is not a member"):
            stranger.push(keys, grads, step=1, read_step=1, samples=4)


def test_barrier_deadline_names_the_missing_ranks() -> None:
    batch = random_batch(1, 4)
    with PsCluster(trainers=3, sync=True, barrier_seconds=0.2) as cluster:
        sparse, dense = cluster.sparse_client(1), cluster.dense_client(1)
        sparse.configure(TABLES, 0)
        dense.configure("sgd", {"lr": 0.1}, VALUES)
        keys = plan(cluster.shard_map, batch)
        with pytest.raises(DeadlineExceeded, match=r"step 1: ranks \[0, 2\] did not push"):
            sparse.push(keys, keys.scatter(batch.grads), step=1, read_step=1, samples=4)
        with pytest.raises(DeadlineExceeded, match=r"step 1: ranks \[0, 2\] did not push"):
            dense.push(VALUES, step=1, samples=1, pause=False)


def test_bad_push_of_one_trainer_does_not_spoil_the_step_of_the_others() -> None:
    batch = random_batch(1, 4)
    with PsCluster(trainers=2, sync=True) as cluster:
        clients = [cluster.sparse_client(r) for r in (0, 1)]
        clients[0].configure(TABLES, 0)
        keys = plan(cluster.shard_map, batch)
        grads = keys.scatter(batch.grads)
        clients[0].pull(keys, step=1)
        bad = ps_pb2.SparsePushRequest(caller=CALLER, counts=[1, 0, 0], keys=bytes(7))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(clients[1].push, keys, grads, step=1, read_step=1, samples=4)
            with pytest.raises(InvalidInput):
                ask(cluster.sparse[0].server.address, ps_pb2_grpc.SparsePsStub, "Push", bad)
            clients[0].push(keys, grads, step=1, read_step=1, samples=4)
            assert waiting.result(10).applied == 2 * keys.unique_keys


def test_closing_a_server_ends_waiting_pushes_with_unavailable() -> None:
    with PsCluster(trainers=2) as cluster:
        client = cluster.dense_client(0, timeout=1.0)
        client.configure("sgd", {"lr": 0.1}, VALUES)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.push, VALUES, step=1, samples=1, pause=False)
            cluster.dense[0].servicer.close()
            with pytest.raises((Unavailable, DeadlineExceeded)):
                waiting.result(10)


def test_server_that_is_away_is_an_error_within_the_deadline(free_port) -> None:
    with SparseClient(
        [f"127.0.0.1:{free_port}"], generation=1, epoch=1, rank=0, timeout=0.3
    ) as client:
        keys = plan(ShardMap.even(64, 1), random_batch(1, 4))
        with pytest.raises(errors.EmbermeshError, match=r"sparse-PS 0 at 127.0.0.1"):
            client.pull(keys, step=1)


def test_client_checks_its_own_arguments(cluster) -> None:
    client = cluster.sparse_client()
    two = plan(ShardMap.even(64, 2), random_batch(1, 4))
    with pytest.raises(InvalidInput, match="the plan is for 2 shards, not 1"):
        client.pull(two, step=1)
    keys = plan(cluster.shard_map, random_batch(1, 4))
    with pytest.raises(InvalidInput, match=r"grads has shape \(1,\), expected"):
        client.push(keys, VALUES[:1], step=1, read_step=1, samples=4)
    dense = cluster.dense_client()
    dense.configure("sgd", {"lr": 0.1}, VALUES)
    with pytest.raises(InvalidInput, match=r"grads has shape \(3,\), expected \(4,\)"):
        dense.push(VALUES[:3], step=1, samples=1, pause=False)


def test_snapshot_that_cannot_be_written_is_unavailable(cluster) -> None:
    caller = ps_pb2.Caller(generation=1, epoch=1)
    request = ps_pb2.SnapshotRequest(caller=caller, uri="file:///proc/nowhere/s.emb")
    for served, stub in (
        (cluster.sparse[0], ps_pb2_grpc.SparsePsStub),
        (cluster.dense[0], ps_pb2_grpc.DensePsStub),
    ):
        with rpc.connect(served.server.address) as channel, pytest.raises(grpc.RpcError) as failure:
            stub(channel).BeginSnapshot(request, timeout=10)
            stub(channel).Snapshot(request, timeout=10)
        assert "can't write file:///proc/nowhere/s.emb" in str(failure.value)
