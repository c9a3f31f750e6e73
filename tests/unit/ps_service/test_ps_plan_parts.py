"""Parts of plans: which keys batches share and where rows belong, against dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_service import codec
from ps_service.client.plan import KeyPart, KeyPlan, KeyPlanner
from ps_service.sharding import ShardMap
from ps_service.tables import table_spec
from services.api.optimizers import OptimizerSpec

SGD = OptimizerSpec(name="sgd")
DIMS = [3, 1]
TABLES = [table_spec("a", DIMS[0], SGD, None), table_spec("b", DIMS[1], SGD, None)]

key = st.one_of(st.integers(0, 9), st.sampled_from([2**64 - 1, 2**63, 2**63 - 1]))
keys_of_a_batch = st.tuples(st.lists(key, max_size=12), st.lists(key, max_size=12))


def planner(shards: int) -> KeyPlanner:
    return KeyPlanner(TABLES, [0, 1], [0, 3], ["sum"] * 2, 4, ShardMap.even(16, shards))


def plan_of(maker: KeyPlanner, batch: tuple[list[int], list[int]]) -> KeyPlan:
    """One sample that has all keys of both features."""
    keys = np.array([*batch[0], *batch[1]], np.uint64)
    offsets = np.array([0, len(batch[0]), len(keys)], np.int32)
    return maker.plan(keys, offsets, 1)


def named(plan: KeyPlan | KeyPart) -> list[tuple[int, int]]:
    """(table, key) of each distinct key, as the requests have them."""
    out: list[tuple[int, int]] = []
    for part in plan.shards:
        tables = np.repeat([0, 1], part.counts).tolist()
        counts = np.array(part.counts, np.uint32)
        keys = codec.unpack_table_keys(*part.packed_keys, "keys", counts)
        out += zip(tables, keys.tolist(), strict=True)
    return out


@given(st.integers(1, 4), keys_of_a_batch, st.lists(keys_of_a_batch, max_size=4))
def test_the_last_plan_that_has_a_key_is_found(shards: int, batch, others) -> None:
    maker = planner(shards)
    plan, before = plan_of(maker, batch), [plan_of(maker, other) for other in others]
    want = [
        max((i for i, other in enumerate(others) if k in other[table]), default=-1)
        for table, k in named(plan)
    ]
    assert plan.last_in(before).tolist() == want


@given(st.integers(1, 4), keys_of_a_batch, st.randoms(use_true_random=False))
def test_rows_that_come_in_parts_lie_where_those_of_the_whole_do(
    shards: int, batch, random
) -> None:
    plan = plan_of(planner(shards), batch)
    names = named(plan)
    sides = np.array([random.randrange(3) for _ in names], np.int32)
    whole = np.concatenate(
        [np.zeros(0, np.float32), *(row_of(table, k) for table, k in names)]
    ).astype(np.float32)
    values = np.full(plan.value_floats, -1, np.float32)
    for side in range(3):
        part = plan.part(np.flatnonzero(sides == side).astype(np.int32))
        chosen = named(part)
        assert chosen == [name for name, s in zip(names, sides.tolist(), strict=True) if s == side]
        rows = [row_of(table, k) for table, k in chosen]
        flat = np.concatenate([np.zeros(0, np.float32), *rows]).astype(np.float32)
        assert len(flat) == part.value_floats
        plan.place(flat, part, values)
    np.testing.assert_array_equal(values, whole)


def row_of(table: int, k: int) -> np.ndarray:
    return np.arange(DIMS[table], dtype=np.float32) + 10 * (k % 1000) + 100_000 * table


def test_what_does_not_fit_is_refused_before_anything_is_written() -> None:
    maker = planner(2)
    plan = plan_of(maker, ([1, 2], [3]))
    native, values = plan._plan, np.zeros(plan.value_floats, np.float32)
    rows, places = np.ones(3, np.float32), np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="positions: 3 is not in 0 to 3 - 1"):
        native.place(rows, np.array([0, 3], np.int32), values)
    with pytest.raises(ValueError, match="positions: -1 is not"):
        native.place(rows, np.array([-1], np.int32), values)
    with pytest.raises(ValueError, match="rows: expected"):
        native.place(np.ones(20, np.float32), places, values)
    with pytest.raises(ValueError, match="values: expected 7 values, got 3"):
        native.place(rows, places, rows)
    with pytest.raises(ValueError, match="same planner"):
        native.last_in([plan_of(planner(2), ([1], []))._plan])
    assert not values.any()
