"""Rows that a push brings along are those that a pull after it would give."""

from __future__ import annotations

import numpy as np
import pytest

from ps_service.client.plan import RecentKeys
from ps_service.client.sparse import NextRead
from services.kit.errors import InvalidInput
from services.wire import ps_pb2
from tests.fixtures.ps_batches import TABLES, plan, planner, random_batch
from tests.fixtures.ps_cluster import PsCluster

SHARDS = 3


def test_rows_come_with_the_push_and_also_with_its_repetition() -> None:
    first, second = random_batch(1, 30), random_batch(2, 30)
    with PsCluster(sparse=SHARDS) as cluster:
        client = cluster.sparse_client()
        client.configure(TABLES, 3)
        maker, recent = planner(cluster.shard_map), RecentKeys()
        now, later = (maker.plan(b.keys, b.offsets, b.samples) for b in (first, second))
        client.pull(now, step=1)
        recent.split(now, 1, 1)
        parts = list(recent.split(later, 2, 1).values())
        assert all(len(part.positions) for part in parts) and len(parts) == 2
        reads = [NextRead(parts[0], 2), NextRead(parts[1], 2)]

        def push() -> tuple[int, np.ndarray]:
            outcome = client.push(
                now, now.scatter(first.grads), step=1, read_step=1, samples=30, then=reads
            )
            values = np.full(later.value_floats, np.nan, np.float32)
            for part, rows in zip(parts, outcome.rows, strict=True):
                later.place(rows, part, values)
            return outcome.duplicate, values

        duplicate, values = push()
        assert duplicate == 0
        again, repeated = push()
        assert again == SHARDS
        pulled = client.pull(later, step=2)
        np.testing.assert_array_equal(values, pulled)
        np.testing.assert_array_equal(repeated, pulled)
        # The rows of keys that only the second batch has were made, as by a pull.
        assert (
            client.push(later, later.scatter(second.grads), step=2, read_step=1, samples=30).applied
            == later.unique_keys
        )


def test_a_bad_read_is_refused_before_the_push_is_applied() -> None:
    batch = random_batch(1, 30)
    with PsCluster() as cluster:
        client = cluster.sparse_client()
        client.configure(TABLES, 3)
        keys = plan(cluster.shard_map, batch)
        client.pull(keys, step=1)
        before = cluster.rows()
        part = keys.shards[0]
        request = ps_pb2.SparsePushRequest(
            caller=client.caller(1),
            counts=part.counts,
            keys=part.packed_keys[0],
            key_coding=part.packed_keys[1],
            grads=keys.scatter(batch.grads).tobytes(),
            then=[ps_pb2.SparsePullRequest(caller=client.caller(2), counts=[1, 0])],
        )
        with pytest.raises(InvalidInput, match="counts has 2 entries, expected 3 tables"):
            client.ask(lambda stub: stub.Push, [(0, request)])
        assert cluster.rows() == before
