"""Parts of plans: which step had a key last and where rows belong, against dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_service import codec
from ps_service.client.plan import KeyPart, KeyPlan, KeyPlanner, RecentKeys
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


@given(
    st.integers(1, 4),
    st.lists(st.tuples(keys_of_a_batch, st.integers(1, 3), st.integers(0, 4)), max_size=9),
)
def test_keys_are_found_under_the_last_step_that_had_them(shards: int, steps) -> None:
    """Steps of one `RecentKeys` with gaps between them, looking back at different distances."""
    maker, recent = planner(shards), RecentKeys()
    had: dict[tuple[int, int], int] = {}
    step, oldest = 0, 1
    for batch, gap, back in steps:
        step += gap
        oldest = max(oldest, step - back)
        plan = plan_of(maker, batch)
        names = named(plan)
        want: dict[int, list[tuple[int, int]]] = {0: []}
        for name in names:
            last = had.get(name, 0)
            want.setdefault(last if last >= oldest else 0, []).append(name)
        found = recent.split(plan, step, oldest)
        assert {last: named(part) for last, part in found.items()} == want
        assert list(found) == sorted(found)
        for part in found.values():
            assert [names[i] for i in part.positions.tolist()] == named(part)
        had |= dict.fromkeys(names, step)


def test_memory_does_not_grow_with_keys_that_no_recent_step_had() -> None:
    """A thousand steps of keys that never come again, and a few that come in each."""
    maker, recent = planner(2), RecentKeys()
    shared = [1, 2, 3]
    for step in range(1, 1001):
        fresh = list(range(100 * step, 100 * step + 50))
        plan = plan_of(maker, (shared + fresh, []))
        found = recent.split(plan, step, max(1, step - 2))
        if step > 1:
            assert {last: len(part.positions) for last, part in found.items()} == {
                0: len(fresh),
                step - 1: len(shared),
            }
    assert recent.cells <= 8 * 4 * 53 + 8


@given(st.integers(1, 4), keys_of_a_batch, st.randoms(use_true_random=False))
def test_rows_that_come_in_parts_lie_where_those_of_the_whole_do(
    shards: int, batch, random
) -> None:
    maker, recent = planner(shards), RecentKeys()
    plan = plan_of(maker, batch)
    names = named(plan)
    some = [[k for t, k in names if t == table and random.random() < 0.5] for table in (0, 1)]
    recent.split(plan_of(maker, (some[0], some[1])), 1, 1)
    whole = np.concatenate(
        [np.zeros(0, np.float32), *(row_of(table, k) for table, k in names)]
    ).astype(np.float32)
    values = np.full(plan.value_floats, -1, np.float32)
    for part in recent.split(plan, 2, 1).values():
        rows = [row_of(table, k) for table, k in named(part)]
        flat = np.concatenate([np.zeros(0, np.float32), *rows]).astype(np.float32)
        assert len(flat) == part.value_floats
        plan.place(flat, part, values)
    np.testing.assert_array_equal(values, whole)


def row_of(table: int, k: int) -> np.ndarray:
    return np.arange(DIMS[table], dtype=np.float32) + 10 * (k % 1000) + 100_000 * table


def test_what_does_not_fit_is_refused_before_anything_is_written() -> None:
    maker = planner(2)
    plan = plan_of(maker, ([1, 2], [3]))
    native, values = plan.native, np.zeros(plan.value_floats, np.float32)
    rows, places = np.ones(3, np.float32), np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="positions: 3 is not in 0 to 3 - 1"):
        native.place(rows, np.array([0, 3], np.int32), values)
    with pytest.raises(ValueError, match="positions: -1 is not"):
        native.place(rows, np.array([-1], np.int32), values)
    with pytest.raises(ValueError, match="rows: expected"):
        native.place(np.ones(20, np.float32), places, values)
    with pytest.raises(ValueError, match="values: expected 7 values, got 3"):
        native.place(rows, places, rows)
    assert not values.any()


@pytest.mark.parametrize(
    ("step", "oldest", "complaint"),
    [
        (5, 1, "step: is 5, must be above the last, 5"),
        (6, 4, "oldest: is 4, must be at least 5"),
        (6, 7, "0 to 4096 before step 6"),
        (5000, 5, "oldest: is 5, must be at least 5 and 0 to 4096 before step 5000"),
    ],
)
def test_steps_out_of_order_or_range_are_refused(step: int, oldest: int, complaint: str) -> None:
    maker, recent = planner(2), RecentKeys()
    plan = plan_of(maker, ([1], []))
    recent.split(plan, 5, 5)
    with pytest.raises(ValueError, match=complaint):
        recent.split(plan, step, oldest)
    with pytest.raises(ValueError, match="same planner"):
        recent.split(plan_of(planner(2), ([1], [])), 6, 6)
    assert list(recent.split(plan, 6, 5)) == [0, 5]
