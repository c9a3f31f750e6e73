"""A snapshot is of the instant at which it began, whatever is trained until it is written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ps_service import _native
from ps_service.client.dense import DenseClient
from ps_service.client.sparse import SparseClient
from ps_service.server.pending import PendingSnapshot
from ps_service.server.sparse import SparseServicer
from services.kit import rpc
from services.kit.errors import Conflict, Unavailable
from services.wire import ps_pb2, ps_pb2_grpc
from tests.fixtures.ps_batches import TABLES, plan, random_batch
from tests.fixtures.ps_cluster import PsCluster, Served

ADAM = {**_native.OPTIMIZERS["adam"], "lr": 0.05}
VALUES = np.arange(5, dtype=np.float32)


@pytest.fixture
def cluster() -> Iterator[PsCluster]:
    with PsCluster() as cluster:
        configure(cluster)
        yield cluster


def configure(cluster: PsCluster) -> tuple[SparseClient, DenseClient]:
    sparse, dense = cluster.sparse_client(), cluster.dense_client()
    sparse.configure(TABLES, 3)
    dense.configure("adam", ADAM, VALUES)
    return sparse, dense


def train(cluster: PsCluster, steps: range) -> None:
    sparse, dense = configure(cluster)
    for step in steps:
        batch = random_batch(step, 8)
        keys = plan(cluster.shard_map, batch)
        sparse.pull(keys, step=step)
        sparse.push(keys, keys.scatter(batch.grads), step=step, read_step=step, samples=8)
        dense.push(VALUES, step=step, samples=8, pause=False)


def ask(served: Served[Any], verb: str, uri: str, **fields: Any) -> Any:
    """The answer of a server to a snapshot verb; an error as the kit's class."""
    caller = ps_pb2.Caller(generation=1, epoch=1)
    request = ps_pb2.SnapshotRequest(caller=caller, uri=uri, **fields)
    is_sparse = isinstance(served.servicer, SparseServicer)
    stub = ps_pb2_grpc.SparsePsStub if is_sparse else ps_pb2_grpc.DensePsStub
    with rpc.connect(served.server.address) as channel:
        method = rpc.Call(getattr(stub(channel), verb), request, "server")
        return rpc.call_all([method], timeout=10, retry=False)[0]


def test_the_files_hold_the_instant_of_the_beginning(cluster: PsCluster, tmp_path: Path) -> None:
    train(cluster, range(1, 4))
    expected, dense_values = cluster.rows(), cluster.dense_values()
    begun = cluster.begin(tmp_path / "000001")
    train(cluster, range(4, 8))
    assert cluster.rows() != expected
    assert not (tmp_path / "000001").exists()
    uri = cluster.write(begun)
    with PsCluster(sparse=2, restore=uri, generation=2) as restored:
        configure(restored)
        assert restored.rows() == expected
        np.testing.assert_array_equal(restored.dense_values(), dense_values)


def test_nothing_is_written_that_was_not_begun(cluster: PsCluster, tmp_path: Path) -> None:
    one, two = f"file://{tmp_path}/1.emb", f"file://{tmp_path}/2.emb"
    for served in (cluster.sparse[0], cluster.dense[0]):
        with pytest.raises(Conflict, match=r"no snapshot was begun for file://.*/1\.emb"):
            ask(served, "Snapshot", one)
        ask(served, "BeginSnapshot", one)
        ask(served, "BeginSnapshot", two)  # the first one's checkpoint came to nothing
        with pytest.raises(Conflict, match="no snapshot was begun for"):
            ask(served, "Snapshot", one)
        ask(served, "DropSnapshot", one)  # is not there any more
        ask(served, "DropSnapshot", two)
        with pytest.raises(Conflict, match="no snapshot was begun for"):
            ask(served, "Snapshot", two)
        ask(served, "BeginSnapshot", two)
        assert ask(served, "Snapshot", two).bytes > 0
        with pytest.raises(Conflict, match="no snapshot was begun for"):
            ask(served, "Snapshot", two)
        (tmp_path / "2.emb").unlink()


def test_a_failed_write_frees_the_snapshot(cluster: PsCluster, tmp_path: Path) -> None:
    train(cluster, range(1, 3))
    nowhere = "file:///proc/nowhere/s.emb"
    ask(cluster.sparse[0], "BeginSnapshot", nowhere)
    train(cluster, range(3, 5))
    with pytest.raises(Unavailable, match="can't write"):
        ask(cluster.sparse[0], "Snapshot", nowhere)
    uri = f"file://{tmp_path}/s.emb"
    ask(cluster.sparse[0], "BeginSnapshot", uri)
    assert ask(cluster.sparse[0], "Snapshot", uri).bytes > 0


class Holding:
    """What a server would hold."""

    def __init__(self) -> None:
        self.abandoned = 0

    def abandon(self) -> None:
        self.abandoned += 1


def test_a_snapshot_nobody_comes_back_for_is_given_up() -> None:
    pending: PendingSnapshot[Holding] = PendingSnapshot(keep_seconds=0.05)
    held = pending.begin("x", Holding)
    end = time.monotonic() + 5
    while not held.abandoned:
        assert time.monotonic() < end
        time.sleep(0.01)
    with pytest.raises(Conflict):
        pending.take("x")
    kept = pending.begin("x", Holding)
    assert pending.take("x") is kept
    time.sleep(0.1)
    assert kept.abandoned == 0, "it is its taker's"
    last = pending.begin("y", Holding)
    pending.close()
    pending.close()
    assert (last.abandoned, held.abandoned) == (1, 1)
