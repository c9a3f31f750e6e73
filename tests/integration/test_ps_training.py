"""Both parameter servers and their clients over real gRPC: what training promises."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ps_service import _native
from ps_service.client.plan import KeyPlanner
from ps_service.sharding import ShardMap
from ps_service.tables import table_spec
from services.api.optimizers import InitializerSpec, OptimizerSpec
from services.kit import rpc
from services.wire import ps_pb2, ps_pb2_grpc
from tests.fixtures.ps_batches import EXTREME_KEYS, TABLES, TestBatch, plan, random_batch
from tests.fixtures.ps_cluster import PsCluster

ADAM = _native.OPTIMIZERS["adam"]


def train(cluster: PsCluster, rank: int, batches: list[TestBatch], seed: int = 3) -> np.ndarray:
    """All steps of one trainer, then Leave; the last dense values it saw."""
    sparse, dense = cluster.sparse_client(rank), cluster.dense_client(rank)
    sparse.configure(TABLES, seed)
    initial = np.linspace(-1, 1, len(batches[0].dense)).astype(np.float32)
    values = dense.configure("adam", ADAM, initial)
    for step, batch in enumerate(batches, start=1):
        keys = plan(cluster.shard_map, batch)
        sparse.pull(keys, step=step)
        grads = keys.scatter(batch.grads)
        sparse.push(keys, grads, step=step, read_step=step, samples=batch.samples)
        values = dense.push(batch.dense, step=step, samples=batch.samples, pause=False).values
    sparse.leave(len(batches))
    dense.leave(len(batches))
    return values


def train_all(cluster: PsCluster, batches: list[list[TestBatch]]) -> list[np.ndarray]:
    """All trainers at once, each on its own thread."""
    with ThreadPoolExecutor(len(batches)) as pool:
        futures = [pool.submit(train, cluster, r, b) for r, b in enumerate(batches)]
        return [f.result(60) for f in futures]


def test_pull_and_push_follow_adagrad_in_numpy() -> None:
    """Rows over two shards against the formula in float64, missing and repeated keys included."""
    adagrad = OptimizerSpec(name="adagrad", params={"lr": 0.3, "initial_accumulator": 0.1})
    tables = [table_spec("t", 5, adagrad, InitializerSpec(name="constant", params={"value": 0.5}))]
    rng = np.random.default_rng(1)
    weights: dict[int, np.ndarray] = {}
    state: dict[int, np.ndarray] = {}
    with PsCluster(sparse=2) as cluster:
        client = cluster.sparse_client()
        assert client.configure(tables, seed=1) == 0
        planner = KeyPlanner(tables, [0], [0], ["sum"], 5, cluster.shard_map)
        for step in range(1, 9):
            keys = rng.choice(np.array([*EXTREME_KEYS, *range(1, 20)], dtype=np.uint64), 16)
            grads = rng.normal(size=(16, 5)).astype(np.float32)
            keyed = planner.plan(keys, np.arange(17, dtype=np.int32), 16)
            values = client.pull(keyed, step=step)
            rows = np.empty((16, 5), dtype=np.float32)
            keyed.gather(values, rows)
            for key, row in zip(keys.tolist(), rows, strict=True):
                np.testing.assert_allclose(row, weights.get(key, np.full(5, 0.5)), rtol=1e-5)
            outcome = client.push(
                keyed, keyed.scatter(grads), step=step, read_step=step - 1, samples=16
            )
            unique = set(keys.tolist())
            assert (outcome.applied, outcome.missing, outcome.duplicate) == (len(unique), 0, 0)
            for key in unique:
                g = grads[keys == key].astype(np.float64).sum(axis=0)
                a = state.get(key, np.full(5, 0.1)) + g * g
                state[key] = a
                weights[key] = weights.get(key, np.full(5, 0.5)) - 0.3 * g / np.sqrt(a + 1e-7)


def test_sync_mode_has_the_same_bits_for_any_number_of_shards() -> None:
    """Three trainers with different batch sizes, one with fewer steps; 1, 2 and 5 shards."""
    batches = [
        [random_batch(100 * rank + step, samples=3 + rank * 2) for step in range(12 - 3 * rank)]
        for rank in range(3)
    ]
    results = []
    for shards, blocks in ((1, 1), (2, 2), (5, 3)):
        with PsCluster(sparse=shards, dense=blocks, trainers=3, sync=True) as cluster:
            values = train_all(cluster, batches)
            results.append((cluster.rows(), values[0].tobytes()))
            assert sum(s.servicer.status()["rows"] for s in cluster.sparse) > 50
    assert results[0] == results[1] == results[2]


def test_sync_mode_equals_one_trainer_with_the_joined_batch() -> None:
    parts = [[random_batch(rank + 10 * step, 2 + 3 * rank) for step in range(6)] for rank in (0, 1)]

    def joined(a: TestBatch, b: TestBatch) -> TestBatch:
        by_table = zip(np.split(a.keys, 3), np.split(b.keys, 3), strict=True)
        total = a.samples + b.samples
        weight = [x.samples / total for x in (a, b)]
        return TestBatch(
            keys=np.concatenate([np.concatenate(pair) for pair in by_table]),
            grads=np.concatenate([a.grads * weight[0], b.grads * weight[1]]).astype(np.float32),
            dense=(a.dense * weight[0] + b.dense * weight[1]).astype(np.float32),
            samples=total,
        )

    with PsCluster(sparse=2, trainers=2, sync=True) as cluster:
        two = train_all(cluster, parts)[0]
        rows_two = [s.export_rows(0) for s in cluster.shards()]
    with PsCluster(sparse=2, trainers=1, sync=True) as cluster:
        one = train(cluster, 0, [joined(a, b) for a, b in zip(*parts, strict=True)])
        rows_one = [s.export_rows(0) for s in cluster.shards()]
    np.testing.assert_allclose(two, one, atol=1e-5)
    for (keys_two, w_two, _), (keys_one, w_one, _) in zip(rows_two, rows_one, strict=True):
        np.testing.assert_array_equal(keys_two, keys_one)
        np.testing.assert_allclose(w_two, w_one, atol=1e-5)


def test_dense_gradients_are_averaged_by_samples() -> None:
    rng = np.random.default_rng(4)
    initial = rng.normal(size=7).astype(np.float32)
    grads = rng.normal(size=(3, 7)).astype(np.float32)
    samples = [10, 0, 30]  # rank 1 is idle
    with PsCluster(dense=2, trainers=3) as cluster:
        clients = [cluster.dense_client(r) for r in range(3)]
        for client in clients:
            np.testing.assert_array_equal(client.configure("sgd", {"lr": 0.5}, initial), initial)
        with ThreadPoolExecutor(3) as pool:
            steps = [
                pool.submit(c.push, grads[r], step=1, samples=samples[r], pause=False)
                for r, c in enumerate(clients)
            ]
            results = [f.result(20) for f in steps]
        expected = initial - 0.5 * (0.25 * grads[0] + 0.75 * grads[2])
        for result in results:
            np.testing.assert_allclose(result.values, expected, rtol=1e-6, atol=1e-7)
            assert (result.version, result.pause) == (1, False)
        np.testing.assert_array_equal(clients[1].pull(), results[0].values)
        assert clients[0].trainers() == 3


def test_step_of_idle_trainers_changes_nothing() -> None:
    with PsCluster(sparse=2, dense=1, trainers=1, sync=True) as cluster:
        sparse, dense = cluster.sparse_client(), cluster.dense_client()
        sparse.configure(TABLES, 0)
        initial = np.ones(3, dtype=np.float32)
        dense.configure("adam", ADAM, initial)
        empty = TestBatch(np.empty(0, np.uint64), np.empty((0, 7), np.float32), initial, 0)
        keys = plan(cluster.shard_map, empty)
        assert sparse.pull(keys, step=1).shape == (0,)
        outcome = sparse.push(keys, keys.scatter(empty.grads), step=1, read_step=1, samples=0)
        assert (outcome.applied, outcome.missing, outcome.duplicate) == (0, 0, 0)
        step = dense.push(np.full(3, 5, np.float32), step=1, samples=0, pause=False)
        assert step.values.tolist() == [1, 1, 1]
        assert step.version == 0


def test_all_must_ask_for_a_pause() -> None:
    initial, grads = np.zeros(4, np.float32), np.ones(4, np.float32)
    with PsCluster(dense=2, trainers=2) as cluster:
        clients = [cluster.dense_client(r) for r in range(2)]
        for client in clients:
            client.configure("sgd", {"lr": 0.1}, initial)
        with ThreadPoolExecutor(2) as pool:
            for step, flags in enumerate(((False, True), (True, True), (False, False)), start=1):
                calls = [
                    pool.submit(c.push, grads, step=step, samples=1, pause=flag)
                    for c, flag in zip(clients, flags, strict=True)
                ]
                assert [c.result(20).pause for c in calls] == [all(flags)] * 2
                # A retry must hear the same, or one trainer would go on alone.
                again = clients[0].push(grads, step=step, samples=1, pause=not all(flags))
                assert again.pause == all(flags)
                assert again.version == step


@pytest.mark.parametrize("sync", [False, True])
def test_repeated_push_is_not_applied_twice(sync: bool) -> None:
    batch = random_batch(1, 8)
    with PsCluster(sparse=2, sync=sync) as cluster:
        client = cluster.sparse_client()
        client.configure(TABLES, 0)
        keys = plan(cluster.shard_map, batch)
        client.pull(keys, step=1)
        grads = keys.scatter(batch.grads)
        first = client.push(keys, grads, step=1, read_step=1, samples=8)
        assert (first.applied, first.duplicate) == (keys.unique_keys, 0)
        before = cluster.rows()
        again = client.push(keys, grads, step=1, read_step=1, samples=8)
        assert (again.applied, again.missing, again.duplicate) == (0, 0, 2)
        assert cluster.rows() == before
        client.push(keys, grads, step=2, read_step=1, samples=8)
        assert cluster.rows() != before
        metric = "embermesh_sparse_duplicate_pushes_total"
        assert [s.registry.get_sample_value(metric) for s in cluster.sparse] == [1, 1]


def test_read_only_never_inserts_and_reads_what_an_insert_would() -> None:
    batch = random_batch(5, 6)
    with PsCluster(sparse=3) as cluster:
        client = cluster.sparse_client()
        client.configure(TABLES, 9)
        keys = plan(cluster.shard_map, batch)
        seen = client.pull(keys, step=1, read_only=True)
        assert [s.servicer.status()["rows"] for s in cluster.sparse] == [0, 0, 0]
        outcome = client.push(keys, keys.scatter(batch.grads), step=1, read_step=1, samples=6)
        assert (outcome.applied, outcome.missing) == (0, keys.unique_keys)
        np.testing.assert_array_equal(client.pull(keys, step=2), seen)
        assert sum(s.servicer.status()["rows"] for s in cluster.sparse) == keys.unique_keys
        metric = "embermesh_sparse_missing_keys_total"
        missing = [s.registry.get_sample_value(metric) or 0 for s in cluster.sparse]
        assert sum(missing) == keys.unique_keys


def test_initial_rows_do_not_depend_on_the_number_of_shards() -> None:
    batch = random_batch(6, 20)
    pooled = []
    for shards in (1, 4):
        with PsCluster(sparse=shards) as cluster:
            client = cluster.sparse_client()
            client.configure(TABLES, 11)
            keys = plan(cluster.shard_map, batch)
            out = np.empty((20, 7), dtype=np.float32)
            keys.gather(client.pull(keys, step=1), out)
            pooled.append(out)
    np.testing.assert_array_equal(pooled[0], pooled[1])


def test_more_shards_than_partitions() -> None:
    with PsCluster(sparse=5, partitions=2, trainers=1) as cluster:
        train(cluster, 0, [random_batch(s, 4) for s in range(3)])
        rows = [s.servicer.status()["rows"] for s in cluster.sparse]
        assert rows.count(0) == 3


def test_more_blocks_than_dense_parameters() -> None:
    with PsCluster(dense=4) as cluster:
        client = cluster.dense_client()
        client.configure("adam", ADAM, np.array([1, 2], np.float32))
        step = client.push(np.array([1, -1], np.float32), step=1, samples=4, pause=False)
        np.testing.assert_allclose(step.values, [0.999, 2.001], rtol=1e-5)


def test_metrics_and_stats_tell_what_happened() -> None:
    batch = random_batch(7, 8)
    with PsCluster(sparse=1, dense=1) as cluster:
        train(cluster, 0, [batch, batch])
        sparse, dense = cluster.sparse[0], cluster.dense[0]
        keys = plan(ShardMap.even(64, 1), batch).unique_keys
        value = sparse.registry.get_sample_value
        assert value("embermesh_sparse_pulled_keys_total", {"purpose": "train"}) == 2 * keys
        assert value("embermesh_sparse_pushed_keys_total") == 2 * keys
        assert value("embermesh_sparse_staleness_steps_count") == 2
        assert value("embermesh_sparse_staleness_steps_sum") == 0
        rows = [value("embermesh_sparse_rows", {"table": t.name}) for t in TABLES]
        assert sum(r or 0 for r in rows) == keys == sparse.servicer.status()["rows"]
        assert value("embermesh_sparse_bytes") == sparse.servicer.status()["bytes"] > 0
        value = dense.registry.get_sample_value
        assert value("embermesh_dense_version") == 2
        assert value("embermesh_dense_parameters") == 11
        assert value("embermesh_dense_trainers") == 0
        assert dense.servicer.status() == {"parameters": 11, "version": 2, "trainers": 0}
        with rpc.connect(sparse.server.address) as channel:
            stats = ps_pb2_grpc.SparsePsStub(channel).Stats(ps_pb2.StatsRequest(), timeout=10)
        assert (list(stats.rows), stats.partitions) == (rows, 64)
