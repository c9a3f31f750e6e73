"""Trainers and servers of one machine: over a bypass everything is as it is by gRPC, to the bit."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import prometheus_client
import pytest
from numpy.typing import NDArray

from ps_service.client.plan import RecentKeys
from ps_service.client.sparse import NextRead
from ps_service.server.assignment import Pace
from services.kit.errors import Conflict, DeadlineExceeded, InvalidInput, Unavailable
from services.kit.laden import Laden
from services.kit.rpc_metrics import ClientMetrics
from services.wire import ps_pb2
from tests.fixtures.ps_batches import TABLES, plan, planner, random_batch
from tests.fixtures.ps_cluster import PsCluster

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bypasses are Linux's")

STEPS = 6
SYNC, HYBRID, ASYNC = {"sync": True}, {}, {"pace": Pace.ON_ARRIVAL}  # type: ignore[var-annotated]
# Mode, trainers, sparse, dense. With two trainers what arrives first is chance in all modes but
# sync.
JOBS = [
    pytest.param(SYNC, 2, 2, 2, id="sync"),
    pytest.param(SYNC, 1, 1, 1, id="sync-alone"),
    pytest.param(HYBRID, 1, 3, 2, id="hybrid"),
    pytest.param(HYBRID, 1, 1, 1, id="hybrid-alone"),
    pytest.param(ASYNC, 1, 2, 1, id="async"),
]
Floats = NDArray[np.float32]


class Trainer:
    """Takes steps with the gradients of random batches, of which the first trainer's clients count
    bytes.
    """

    def __init__(self, cluster: PsCluster, rank: int, values: str) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        metrics = ClientMetrics(self.registry)
        self._rank = rank
        self.sparse = cluster.sparse_client(rank, values=values, metrics=metrics)
        self.dense = cluster.dense_client(rank, metrics=metrics)
        self.sparse.configure(TABLES, 3)
        initial = np.linspace(-1, 1, 77, dtype=np.float32)
        self.parameters = self.dense.configure("adam", {"lr": 0.01}, initial)
        self._batches = [random_batch(n, 40) for n in range(STEPS + 1)]
        maker = planner(cluster.shard_map)
        self._plans = [maker.plan(b.keys, b.offsets, b.samples) for b in self._batches]

    def step(self, step: int) -> list[Floats]:
        """Pulls, pushes both gradients, and reads rows of the next batch: all rows it saw."""
        now, later, recent = self._plans[step - 1], self._plans[step], RecentKeys()
        pulled = self.sparse.pull(now, step=step)
        recent.split(now, step, step)
        parts = recent.split(later, step + 1, step)
        grads = now.scatter(self._batches[step - 1].grads) * np.float32(self._rank + 1)
        then = [NextRead(part, step + 1) for part in parts.values()]
        outcome = self.sparse.push(
            now, grads, step=step, read_step=step, samples=40 + self._rank, then=then
        )
        given = self.parameters * np.float32(0.1 * (self._rank + 1))
        self.parameters = self.dense.push(given, step=step, samples=40, pause=False).values
        return [np.array(pulled), *map(np.array, outcome.rows)]

    def bytes(self, service: str, verb: str, way: str) -> float:
        labels = {"service": service, "verb": verb, "direction": way}
        return self.registry.get_sample_value("embermesh_rpc_client_bytes_total", labels) or 0.0


def train(
    cluster: PsCluster, trainers: int, values: str
) -> tuple[list[Floats], Floats, dict[tuple[str, str, str], float]]:
    """What the first of `trainers` saw of rows, its last parameters, and the bytes it moved."""
    with ThreadPoolExecutor(trainers) as pool:
        team = [Trainer(cluster, rank, values) for rank in range(trainers)]
        seen = []
        for step in range(1, STEPS + 1):
            steps = [pool.submit(one.step, step) for one in team]
            saw = [s.result(20) for s in steps]
            seen += saw[0]
    verbs = [("SparsePs", "Pull"), ("SparsePs", "Push"), ("DensePs", "Push")]
    moved = {(*v, way): team[0].bytes(*v, way) for v in verbs for way in ("in", "out")}
    return seen, np.array(team[0].parameters), moved


@pytest.mark.parametrize(("mode", "trainers", "sparse", "dense"), JOBS)
@pytest.mark.parametrize("values", ["fp32", "scaled-fp16"])
def test_everything_is_as_by_grpc(
    mode: dict[str, object], trainers: int, sparse: int, dense: int, values: str
) -> None:
    size = {"trainers": trainers, "sparse": sparse, "dense": dense}
    with (
        PsCluster(**size, **mode) as plain,  # type: ignore[arg-type]
        PsCluster(**size, **mode, bypass=True) as bypassed,  # type: ignore[arg-type]
    ):
        clients = (bypassed.sparse_client(), bypassed.dense_client(), plain.sparse_client())
        assert [c.has_bypass(0) for c in clients] == [True, True, False]
        by_grpc, by_bypass = (train(cluster, trainers, values) for cluster in (plain, bypassed))
    assert len(by_bypass[0]) == len(by_grpc[0]) > STEPS
    for here, there in zip(by_bypass[0], by_grpc[0], strict=True):
        np.testing.assert_array_equal(here, there)
    np.testing.assert_array_equal(by_bypass[1], by_grpc[1])
    frames = 12 * 2 * STEPS * max(sparse, dense)  # tags and lengths of arrays in messages
    for kind, moved in by_grpc[2].items():
        assert moved - frames <= by_bypass[2][kind] <= moved, kind


def test_a_bad_push_changes_nothing_and_the_bypass_goes_on() -> None:
    batch = random_batch(1, 30)
    with PsCluster(bypass=True) as cluster:
        client, block = cluster.sparse_client(), cluster.dense_client()
        client.configure(TABLES, 3)
        block.configure("sgd", {"lr": 0.1}, np.ones(5, np.float32))
        keys = plan(cluster.shard_map, batch)
        client.pull(keys, step=1)
        before, part = cluster.rows(), keys.shards[0]
        grads = keys.scatter(batch.grads)
        message = ps_pb2.SparsePushRequest(
            caller=client.caller(1),
            counts=part.counts,
            keys=part.packed_keys[0],
            key_coding=part.packed_keys[1],
        )
        for arrays, text in [
            ([grads[:-1].data.cast("B")], "grads has .* bytes, expected"),
            ([], "arrays: 0 beside the request, expected 1"),
            ([grads.data.cast("B")] * 2, "arrays: 2 beside the request, expected 1"),
        ]:
            with pytest.raises(InvalidInput, match=f"sparse-PS 0 at .*: {text}"):
                client.ask(lambda stub: stub.Push, [(0, Laden(message, arrays))])
        dense = ps_pb2.DensePushRequest(caller=block.caller(1), samples=1)
        with pytest.raises(InvalidInput, match="grads has 8 bytes, expected 20"):
            block.ask(lambda stub: stub.Push, [(0, Laden(dense, [memoryview(bytes(8))]))])
        assert cluster.rows() == before
        outcome = client.push(keys, grads, step=1, read_step=1, samples=30)
        again = client.push(keys, grads, step=1, read_step=1, samples=30)
        assert (outcome.applied, outcome.duplicate) == (keys.unique_keys, 0)
        assert (again.applied, again.duplicate) == (0, 1)
        with pytest.raises(Conflict, match="its next step is 2"):
            client.push(keys, grads, step=7, read_step=1, samples=30)


def test_a_push_that_was_given_up_still_counts_as_it_was() -> None:
    """The barrier keeps its arrays; the memory of its connection takes in others meanwhile."""
    batch = random_batch(1, 30)

    def rows(*, give_up: bool) -> Floats:
        with PsCluster(trainers=2, sync=True, bypass=True, barrier_seconds=0.5) as cluster:
            one, other = cluster.sparse_client(0), cluster.sparse_client(1)
            for client in (one, other):
                client.configure(TABLES, 3)
            keys = plan(cluster.shard_map, batch)
            one.pull(keys, step=1)
            grads = keys.scatter(batch.grads)
            step: dict[str, Any] = {"step": 1, "read_step": 1, "samples": 30}
            with ThreadPoolExecutor(1) as pool:
                mine = pool.submit(one.push, keys, grads, **step)
                if give_up:
                    with pytest.raises(DeadlineExceeded, match=r"ranks \[1\] did not push"):
                        mine.result(10)
                    with pytest.raises(Conflict, match="its next step is 1"):
                        one.push(keys, grads * 9, step=7, read_step=1, samples=30)
                other.push(keys, grads, **step)
                if not give_up:
                    mine.result(10)
            return np.array(one.pull(keys, step=2))

    np.testing.assert_array_equal(rows(give_up=True), rows(give_up=False))


def test_a_server_that_ends_is_unavailable() -> None:
    batch = random_batch(1, 30)
    with PsCluster(bypass=True) as cluster:
        client = cluster.sparse_client(timeout=1.0)
        client.configure(TABLES, 3)
        keys = plan(cluster.shard_map, batch)
        client.pull(keys, step=1)
        cluster.sparse[0].server.drain(1)
        with pytest.raises(Unavailable, match=r"sparse-PS 0 at .*: bypass: "):
            client.pull(keys, step=2)
