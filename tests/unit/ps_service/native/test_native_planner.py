"""The planner against numpy.unique and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps_service import _native
from tests.unit.ps_service.native import reference as ref

PARTITIONS = 16


def make_planner(feature_tables, dims, combiners, shards, gap=2, threads=1):
    """A planner with `gap` unused columns before each feature."""
    columns, at = [], 0
    for table in feature_tables:
        columns.append(at + gap)
        at += gap + dims[table]
    owners = (np.arange(PARTITIONS) * 7 % shards).astype(np.uint16)
    planner = _native.Planner(
        feature_tables=ref.u32(*feature_tables),
        dims=ref.u32(*dims),
        columns=ref.u32(*columns),
        combiners=combiners,
        owners=owners,
        shards=shards,
        width=at + 1,
        threads=threads,
    )
    return planner, columns, owners, at + 1


def expected_unique(feature_tables, tables, owners, shards, bags):
    """Distinct (shard, table, key) in wire order, from loops and a dict."""
    found: list[list[dict]] = [[{} for _ in range(tables)] for _ in range(shards)]
    for table, feature_bags in zip(feature_tables, bags, strict=True):
        for bag in feature_bags:
            for key in bag:
                partition = _native.partition_of(table, ref.u64([key]), PARTITIONS)[0]
                found[owners[partition]][table].setdefault(key, None)
    return found


def csr(bags, batch):
    lengths = [len(bag) for feature in bags for bag in feature]
    offsets = np.zeros(len(bags) * batch + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    keys = ref.u64([key for feature in bags for bag in feature for key in bag])
    return keys, offsets


@st.composite
def problems(draw):
    dims = draw(st.lists(st.sampled_from([1, 3, 16]), min_size=1, max_size=3))
    feature_tables = draw(st.lists(st.integers(0, len(dims) - 1), min_size=0, max_size=4))
    batch = draw(st.integers(0, 5))
    key = st.one_of(st.sampled_from(ref.EXTREME_KEYS), st.integers(0, 8))
    sizes = draw(st.sampled_from([(1, 1), (0, 3)]))
    bag = st.lists(key, min_size=sizes[0], max_size=sizes[1])
    feature = st.lists(bag, min_size=batch, max_size=batch)
    bags = [draw(feature) for _ in feature_tables]
    combiner = st.sampled_from(["sum", "mean", "sqrtn"])
    combiners = [draw(combiner) for _ in feature_tables]
    return dims, feature_tables, batch, bags, combiners, draw(st.sampled_from([1, 3]))


def scale_of(combiner, size):
    return {"sum": 1.0, "mean": 1.0 / size, "sqrtn": 1.0 / np.sqrt(size)}[combiner]


@settings(max_examples=120, deadline=None)
@given(problems(), st.integers(0, 2**32))
def test_plan_gather_and_scatter_are_what_loops_compute(problem, seed):
    dims, feature_tables, batch, bags, combiners, shards = problem
    planner, columns, owners, width = make_planner(feature_tables, dims, combiners, shards)
    keys, offsets = csr(bags, batch)
    plan = planner.plan(keys, offsets, batch)

    found = expected_unique(feature_tables, len(dims), owners, shards, bags)
    flat = [
        (s, t, k) for s, tables in enumerate(found) for t, seen in enumerate(tables) for k in seen
    ]
    assert plan.unique.tolist() == [key for _, _, key in flat]
    assert plan.counts.tolist() == [[len(seen) for seen in tables] for tables in found]
    floats = [sum(len(seen) * dims[t] for t, seen in enumerate(tables)) for tables in found]
    assert plan.value_floats.tolist() == floats
    np.testing.assert_array_equal(plan.unique[plan.inverse], keys)

    rng = np.random.default_rng(seed)
    values = rng.normal(size=sum(floats)).astype(np.float32)
    rows, at = {}, 0
    for _, table, key in flat:
        rows[table, key] = slice(at, at + dims[table])
        at += dims[table]
    out = np.full((batch, width), 7.0, np.float32)
    plan.gather(values, out)
    grads = rng.normal(size=(batch, width)).astype(np.float32)
    expected = np.full((batch, width), 7.0)
    sums = np.zeros(sum(floats))
    for table, column, combiner, feature in zip(
        feature_tables, columns, combiners, bags, strict=True
    ):
        span = slice(column, column + dims[table])
        for b, bag in enumerate(feature):
            expected[b, span] = 0.0
            for key in bag:
                scale = scale_of(combiner, len(bag))
                expected[b, span] += scale * values[rows[table, key]].astype(float)
                sums[rows[table, key]] += scale * grads[b, span].astype(float)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(plan.scatter(grads), sums, rtol=1e-5, atol=1e-6)
    for size in range(1, batch + 1):  # in pieces
        pieces = [grads[at : at + size] for at in range(0, batch, size)]
        np.testing.assert_array_equal(plan.scatter(*pieces), plan.scatter(grads))


def test_a_large_zipf_batch_has_the_keys_of_numpy_unique():
    rng = np.random.default_rng(0)
    features, batch = 26, 1024
    planner, _, owners, _ = make_planner(
        list(range(features)), [16] * features, ["sum"] * features, 4, gap=0
    )
    keys = (rng.zipf(1.1, features * batch) % 100_000).astype(np.uint64)
    plan = planner.plan(keys, np.arange(len(keys) + 1, dtype=np.int32), batch)
    starts = np.cumsum(plan.counts.ravel()) - plan.counts.ravel()
    for table in range(features):
        segments = [slice(starts[s * features + table], None) for s in range(4)]
        parts = [plan.unique[seg][: plan.counts[s, table]] for s, seg in enumerate(segments)]
        for shard, part in enumerate(parts):
            assert (owners[_native.partition_of(table, part, PARTITIONS)] == shard).all()
        expected = np.unique(keys[table * batch : (table + 1) * batch])
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), expected)
    np.testing.assert_array_equal(plan.unique[plan.inverse], keys)


@st.composite
def large_problems(draw):
    """A batch that is worth a team, with a table that is worth cutting."""
    tables = draw(st.integers(1, 3))
    dims = draw(st.sampled_from([[16] * 3, [3, 16, 1]]))[:tables]
    feature_tables = [0, *draw(st.lists(st.integers(0, tables - 1), max_size=2))]
    batch = draw(st.sampled_from([9_000, 12_345]))
    return {
        "feature_tables": feature_tables,
        "dims": dims,
        "combiners": draw(st.sampled_from(["sum", "mean", "sqrtn"])),
        "shards": draw(st.sampled_from([1, 2, 5])),
        "batch": batch,
        "keys_per_bag": draw(st.sampled_from([1, 3])),  # 1: exactly; 3: 0 to 2
        "space": draw(st.sampled_from([1, 40, 3_000, 2**63])),
    }


def first_occurrences(keys, tables, owners):
    """Distinct (shard, table, key) in wire order, from numpy.unique of each table."""
    found = {}
    for table in np.unique(tables):
        places = np.flatnonzero(tables == table)
        distinct, first = np.unique(keys[places], return_index=True)
        distinct = distinct[np.argsort(first)]
        shards = owners[_native.partition_of(int(table), distinct, PARTITIONS)]
        for shard in np.unique(shards):
            found[int(shard), int(table)] = distinct[shards == shard]
    return [(*segment, found[segment]) for segment in sorted(found)]


@settings(max_examples=15, deadline=None)
@given(large_problems(), st.integers(2, 5), st.integers(0, 2**32))
def test_a_team_plans_what_numpy_finds_and_one_thread_does(problem, threads, seed):
    rng = np.random.default_rng(seed)
    features, batch = problem["feature_tables"], problem["batch"]
    bags = len(features) * batch
    one = problem["keys_per_bag"] == 1
    lengths = np.ones(bags, np.int64) if one else rng.integers(0, 3, bags)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    keys = rng.integers(0, problem["space"], offsets[-1], dtype=np.uint64) - np.uint64(1)
    shape = (features, problem["dims"], [problem["combiners"]] * len(features), problem["shards"])
    alone, _, owners, width = make_planner(*shape)
    team, _, _, _ = make_planner(*shape, threads=threads)
    plan, plan_alone = team.plan(keys, offsets, batch), alone.plan(keys, offsets, batch)

    tables = np.repeat(np.repeat(np.array(features), batch), lengths)
    expected = first_occurrences(keys, tables, owners)
    np.testing.assert_array_equal(plan.unique, np.concatenate([part for _, _, part in expected]))
    counts = np.zeros_like(plan.counts)
    for shard, table, part in expected:
        counts[shard, table] = len(part)
    np.testing.assert_array_equal(plan.counts, counts)
    np.testing.assert_array_equal(plan.unique[plan.inverse], keys)

    np.testing.assert_array_equal(plan.inverse, plan_alone.inverse)
    values = rng.normal(size=int(plan.value_floats.sum())).astype(np.float32)
    gathered = [np.zeros((batch, width), np.float32) for _ in range(2)]
    plan.gather(values, gathered[0])
    plan_alone.gather(values, gathered[1])
    np.testing.assert_array_equal(gathered[0], gathered[1])
    np.testing.assert_array_equal(plan.scatter(gathered[0]), plan_alone.scatter(gathered[0]))
    pieces = [gathered[0][at : at + 4096] for at in range(0, batch, 4096)]
    np.testing.assert_array_equal(plan.scatter(*pieces), plan_alone.scatter(gathered[0]))


def test_the_plan_lays_values_out_as_the_shards_reply():
    dims, shards = [2, 3], 2
    planner, _, _, width = make_planner([0, 1, 0], dims, ["sum"] * 3, shards)
    tables = [ref.table(f"t{i}", dim) for i, dim in enumerate(dims)]
    servers = [_native.SparseShard(tables, partitions=PARTITIONS, seed=5) for _ in range(shards)]
    keys = ref.u64([1, 2, 2, 3, 1, 9])
    plan = planner.plan(keys, np.arange(7, dtype=np.int32), 2)
    ends = np.cumsum(plan.counts.sum(axis=1))
    starts = ends - plan.counts.sum(axis=1)
    replies = [
        server.pull(plan.counts[s], plan.unique[starts[s] : ends[s]], insert=True)
        for s, server in enumerate(servers)
    ]
    assert [len(reply) // 4 for reply in replies] == plan.value_floats.tolist()
    out = np.zeros((2, width), np.float32)
    plan.gather(ref.floats(b"".join(replies)), out)
    whole = _native.SparseShard(tables, partitions=PARTITIONS, seed=5)
    first = ref.floats(whole.pull(ref.u32(1, 0), keys[:1], insert=False))
    third = ref.floats(whole.pull(ref.u32(0, 1), keys[2:3], insert=False))
    np.testing.assert_array_equal(out[0, 2:4], first)
    np.testing.assert_array_equal(out[0, 6:9], third)


def test_the_arrays_are_views_that_keep_the_plan_alive_and_cannot_be_written():
    planner, _, _, _ = make_planner([0], [1], ["sum"], 1)
    unique = planner.plan(ref.u64([5, 5]), np.array([0, 1, 2], np.int32), 2).unique
    del planner
    assert unique.tolist() == [5]
    with pytest.raises(ValueError, match="read-only"):
        unique[0] = 6
