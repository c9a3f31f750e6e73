"""The balance plan holds its promises for any load, and reaches a known optimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_service.balance import Bounds, Move, Spread, plan, spread
from ps_service.sharding import ShardMap
from services.kit.errors import InvalidInput


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], ShardMap, Bounds]:
    partitions = 2 ** draw(st.integers(0, 6))
    shards = draw(st.integers(1, 7))
    load = st.one_of(st.integers(0, 9), st.integers(0, 2**62))
    loads = draw(st.lists(load, min_size=partitions, max_size=partitions))
    owner = st.integers(0, shards - 1)
    owners = draw(st.lists(owner, min_size=partitions, max_size=partitions))
    bounds = Bounds(draw(st.integers(0, 80)), draw(st.sampled_from([0.0, 0.05, 0.5])))
    return loads, ShardMap.of(1, owners, shards), bounds


def totals(loads: list[int], owners: list[int], shards: int) -> list[int]:
    """Exact, unlike a sum of 64-bit integers."""
    return [sum(x for x, o in zip(loads, owners, strict=True) if o == s) for s in range(shards)]


@given(cases())
def test_every_plan_holds_its_promises(case: tuple[list[int], ShardMap, Bounds]) -> None:
    loads, shards, bounds = case
    moves = plan(loads, shards, bounds)
    assert moves == plan(list(loads), shards, bounds), "deterministic"
    assert len(moves) <= bounds.most_moves
    assert len({m.partition for m in moves}) == len(moves), "a partition moves once"
    owners: list[int] = shards.owners.tolist()
    before = totals(loads, owners, shards.shards)
    for move in moves:
        assert owners[move.partition] == move.source != move.target
        assert loads[move.partition] > 0
        owners[move.partition] = move.target
        after = totals(loads, owners, shards.shards)
        assert max(after) <= max(before), "no step makes the busiest shard busier"
        assert sum(x * x for x in after) < sum(x * x for x in before), "each step evens out"
        before = after


@given(cases())
def test_without_a_bound_on_moves_one_partition_makes_the_rest_of_the_difference(
    case: tuple[list[int], ShardMap, Bounds],
) -> None:
    """The bound that greedy balancing has: the busiest is within the slack, or no busier than the
    idlest and one partition together.
    """
    loads, shards, _ = case
    slack = 0.05
    owners: list[int] = shards.owners.tolist()
    for move in plan(loads, shards, Bounds(most_moves=10_000, slack=slack)):
        owners[move.partition] = move.target
    after = totals(loads, owners, shards.shards)
    mean = sum(loads) / shards.shards
    assert max(after) <= max((1 + slack) * mean * (1 + 1e-12), min(after) + max(loads))


def test_equal_partitions_on_one_shard_are_dealt_out() -> None:
    moves = plan([10] * 8, ShardMap.of(1, [0] * 8, 4))
    assert moves == [Move(p, 0, 1 + p % 3) for p in range(6)]


def test_one_hot_partition_is_left_and_its_neighbours_go() -> None:
    loads = [100, 1, 1, 1, 20, 20, 20, 20]
    moves = plan(loads, ShardMap.even(8, 2))
    assert {m.partition for m in moves} == {1, 2, 3}
    assert {(m.source, m.target) for m in moves} == {(0, 1)}


@pytest.mark.parametrize(
    ("loads", "owners"), [([5, 5, 5, 5], [0, 0, 1, 1]), ([0] * 4, [0] * 4), ([9, 0], [0, 0])]
)
def test_nothing_moves_when_nothing_would_be_better(loads: list[int], owners: list[int]) -> None:
    assert plan(loads, ShardMap.of(1, owners, 2)) == []


def test_small_differences_are_left_alone() -> None:
    loads, shards = [26, 26, 24, 24], ShardMap.even(4, 2)
    assert plan(loads, shards, Bounds(slack=0.05)) == []
    loads = [30, 26, 20, 24]
    assert plan(loads, shards, Bounds(slack=0.2)) == []
    assert plan([31, 6, 20, 24], ShardMap.of(1, [0, 0, 0, 1], 2), Bounds(slack=0.05)) != []


@pytest.mark.parametrize(
    ("loads", "message"),
    [([1, 2, 3], "loads has 3 entries, there are 4"), ([1, 2, -3, 4], "partition 2 has -3")],
)
def test_wrong_loads_are_refused(loads: list[int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        plan(loads, ShardMap.even(4, 2))


@pytest.mark.parametrize(
    ("bounds", "message"),
    [({"most_moves": -1}, "most_moves is -1"), ({"slack": -0.1}, r"slack is -0\.1")],
)
def test_wrong_bounds_are_refused(bounds: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Bounds(**bounds)


def test_spread() -> None:
    assert spread(np.array([1, 1, 2, 0], np.uint64)) == Spread(peak_to_mean=2.0, top_share=0.5)
    assert spread(np.zeros(4, np.uint64)) is None
    assert spread(np.zeros(0, np.uint64)) is None
