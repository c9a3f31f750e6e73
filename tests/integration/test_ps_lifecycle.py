"""Admission and eviction over the wire: event time, shows and clicks, removals, restores."""

from __future__ import annotations

import numpy as np
import pytest

from ps_service.client.plan import KeyPlanner
from ps_service.tables import RowPolicy, table_spec
from services.api.lifecycle import Admission, Eviction
from services.api.optimizers import OptimizerSpec
from services.kit.errors import InvalidInput
from tests.fixtures.ps_cluster import PsCluster

SGD = OptimizerSpec(name="sgd", params={"lr": 0.5})
START = 1_700_000_000
SEED = 3


def policy(admission=None, eviction=None):
    return RowPolicy.of(
        Admission.model_validate(admission) if admission else None,
        Eviction.model_validate(eviction) if eviction else None,
    )


def planner(cluster, table):
    return KeyPlanner([table], [0], [0], ["sum"], table.dim, cluster.shard_map)


def plan_of(cluster, table, keys, labels=None):
    offsets = np.arange(len(keys) + 1, dtype=np.int32)
    batch = np.array(keys, np.uint64)
    marks = None if labels is None else np.array(labels, np.float32)
    return planner(cluster, table).plan(batch, offsets, len(keys), marks)


def rows(cluster):
    return sorted(key for shard in cluster.shards() for key in shard.export_rows(0)[0].tolist())


def lifecycles(cluster):
    return [s.servicer._state.lifecycle for s in cluster.sparse if s.servicer._state]


def sweep(cluster, steps=64):
    for lifecycle in lifecycles(cluster):
        for step in range(steps):
            lifecycle.stepped(step)


def test_a_key_gets_its_row_the_second_time_and_reading_does_not_count() -> None:
    table = table_spec("t", 2, SGD, None, rows=policy({"count": {"n": 2, "keys": 1000}}))
    with PsCluster(sparse=2, sync=True) as cluster:
        client = cluster.sparse_client()
        client.configure([table], SEED)
        plan = plan_of(cluster, table, range(10))
        initial = client.pull(plan, step=0, read_only=True)
        np.testing.assert_array_equal(client.pull(plan, step=1), initial)
        client.pull(plan, step=0, read_only=True)
        grads = np.ones(plan.value_floats, np.float32)
        outcome = client.push(plan, grads, step=1, read_step=1, samples=10)
        assert (outcome.applied, outcome.missing) == (0, 10)
        np.testing.assert_array_equal(client.pull(plan, step=2), initial)
        outcome = client.push(plan, grads, step=2, read_step=2, samples=10)
        assert (outcome.applied, outcome.missing) == (10, 0)
        np.testing.assert_array_equal(client.pull(plan, step=3), initial - np.float32(0.5))


def test_old_rows_go_by_event_time_and_are_listed() -> None:
    table = table_spec("t", 2, SGD, None, rows=policy(eviction={"ttl": 100}))
    with PsCluster(sparse=2, sync=True) as cluster:
        client = cluster.sparse_client()
        client.configure([table], SEED)
        assert not any(part.complete for part in client.removed())
        client.pull(plan_of(cluster, table, range(50)), step=1, event_time=START)
        client.pull(plan_of(cluster, table, range(10)), step=2, event_time=START + 90)
        every = plan_of(cluster, table, range(50))
        client.pull(every, step=2, read_only=True, event_time=START + 99)
        for lifecycle in lifecycles(
            cluster
        ):  # each shard has its own clock; a push tells all of them
            lifecycle.observe(START + 101)
        sweep(cluster)
        assert rows(cluster) == list(range(10))
        removed = client.removed()
        assert all(part.complete for part in removed)
        assert sorted(np.concatenate([part.keys for part in removed])) == list(range(10, 50))
        assert [part.counts for part in removed] == [[len(part.keys)] for part in removed]


def test_rows_without_clicks_go_first() -> None:
    rules = {"score": {"below": 1.0, "show": 0.1, "click": 1.0, "idle": 0}}
    table = table_spec("t", 1, SGD, None, rows=policy(eviction=rules))
    with PsCluster(sparse=2, sync=True) as cluster:
        client = cluster.sparse_client()
        client.configure([table], SEED)
        keys = [1, 1, 2, 2, 3] + [4] * 12
        labels = [1, 1, 0, 1, 0] + [0] * 12
        plan = plan_of(cluster, table, keys, labels)
        client.pull(plan, step=1, event_time=START)
        grads = np.zeros(plan.value_floats, np.float32)
        client.push(plan, grads, step=1, read_step=1, samples=17, event_time=START)
        sweep(cluster)
        assert rows(cluster) == [1, 2, 4]  # 2.0, 1.1 and 1.2 against 0.1


def test_ages_survive_a_restore_into_other_shards(tmp_path) -> None:
    table = table_spec("t", 2, SGD, None, rows=policy(eviction={"ttl": 100}))
    with PsCluster(sparse=3, sync=True) as cluster:
        client = cluster.sparse_client()
        client.configure([table], SEED)
        cluster.dense_client().configure("sgd", {"lr": 0.1}, np.zeros(3, np.float32))
        client.pull(plan_of(cluster, table, range(300)), step=1, event_time=START)
        client.pull(plan_of(cluster, table, range(100)), step=2, event_time=START + 60)
        uri = cluster.snapshot(tmp_path)
    with PsCluster(sparse=2, sync=True, restore=uri, generation=2) as cluster:
        assert cluster.sparse_client().configure([table], SEED) == 300
        for lifecycle in lifecycles(cluster):
            lifecycle.observe(START + 120)
        sweep(cluster)
        assert rows(cluster) == list(range(100))


def test_a_time_far_ahead_is_refused_before_anything_changes() -> None:
    table = table_spec("t", 2, SGD, None, rows=policy(eviction={"ttl": 100}))
    with PsCluster(sync=True) as cluster:
        client = cluster.sparse_client()
        client.configure([table], SEED)
        with pytest.raises(InvalidInput, match="a day ahead of this server's clock"):
            client.pull(plan_of(cluster, table, [1]), step=1, event_time=2**32 - 1)
        assert rows(cluster) == []
