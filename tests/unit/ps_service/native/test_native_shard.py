"""The sparse shard against a Python dict model, and its promises of determinism."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps_service import _native
from tests.unit.ps_service.native import reference as ref

keys_strategy = st.lists(
    st.one_of(st.sampled_from(ref.EXTREME_KEYS), st.integers(0, 30)), max_size=12
)
# Keys of table 1 that have the hash of a small key of table 0.
twins_strategy = st.lists(st.integers(0, 30).map(ref.twin_of), max_size=12)
operation = st.tuples(
    st.sampled_from(["pull", "peek", "push", "erase", "compact", "reload", "clear"]),
    st.lists(  # groups x tables
        st.tuples(keys_strategy, st.one_of(keys_strategy, twins_strategy)), min_size=1, max_size=3
    ),
    st.integers(0, 2**31),
)


class DictModel:
    """What SparseShard promises, key by key, for sgd with lr 0.5 (exact in float32)."""

    def __init__(self, dims):
        self.dims = dims
        self.rows: list[dict] = [{} for _ in dims]

    def pull(self, groups, insert):
        values = [np.zeros(0, np.float32)]
        for group in groups:
            for table, keys in enumerate(group):
                for key in keys:
                    row = self.rows[table].get(key)
                    if row is None:
                        row = initial_row(self.dims, table, key)
                    if insert:
                        self.rows[table][key] = row
                    values.append(row)
        return np.concatenate(values)

    def push(self, groups, grads):
        sums: dict = {}
        at = 0
        applied = missing = 0
        for group in groups:
            for table, keys in enumerate(group):
                for key in keys:
                    grad = grads[at : at + self.dims[table]]
                    at += self.dims[table]
                    if key not in self.rows[table]:
                        missing += 1
                        continue
                    applied += 1
                    place = (table, key)
                    sums[place] = sums[place] + grad if place in sums else grad.copy()
        for (table, key), grad in sums.items():
            self.rows[table][key] = self.rows[table][key] - np.float32(0.5) * grad
        return applied, missing

    def erase(self, groups):
        places = {(t, k) for group in groups for t, keys in enumerate(group) for k in keys}
        present = [(table, key) for table, key in places if key in self.rows[table]]
        for table, key in present:
            del self.rows[table][key]
        return len(present)


def make_shard(dims, partitions, seed=11):
    tables = [
        ref.table(f"t{i}", dim, optimizer="sgd", optimizer_params={"lr": 0.5})
        for i, dim in enumerate(dims)
    ]
    return _native.SparseShard(tables, partitions=partitions, seed=seed)


def initial_row(dims, table, key):
    fresh = make_shard(dims, partitions=1)
    counts = np.zeros(len(dims), np.uint32)
    counts[table] = 1
    return ref.floats(fresh.pull(counts, ref.u64([key]), insert=False))


@settings(max_examples=60, deadline=None)
@given(
    dims=st.sampled_from([(1, 512), (3, 4), (4, 4)]),
    partitions=st.sampled_from([1, 4, 64]),
    script=st.lists(operation, max_size=8),
)
def test_it_behaves_as_a_dict_of_rows(dims, partitions, script):
    shard = make_shard(dims, partitions)
    model = DictModel(dims)
    for name, groups, seed in script:
        counts = ref.u32(*(len(keys) for group in groups for keys in group))
        keys = ref.u64([key for group in groups for keys in group for key in keys])
        if name in ("pull", "peek"):
            values = ref.floats(shard.pull(counts, keys, insert=name == "pull"))
            np.testing.assert_array_equal(values, model.pull(groups, insert=name == "pull"))
        elif name == "push":
            size = sum(dims[t] * len(group[t]) for group in groups for t in range(2))
            grads = np.random.default_rng(seed).normal(size=size).astype(np.float32)
            result = shard.push(counts, keys, grads)
            assert (result.applied, result.missing) == model.push(groups, grads)
        elif name == "erase":
            assert shard.erase(counts, keys) == model.erase(groups)
        elif name == "compact":
            shard.compact()
        elif name == "reload":
            blocks = [shard.dump_partition(p) for p in range(partitions)]
            shard = make_shard(dims, partitions)
            assert sum(map(shard.load_partition, blocks)) == sum(map(len, model.rows))
        else:
            shard.clear()
            model = DictModel(dims)
        assert shard.rows().tolist() == [len(rows) for rows in model.rows]
    assert_rows_equal(shard, model)


def assert_rows_equal(shard, model):
    for table, rows in enumerate(model.rows):
        keys, weights, _ = shard.export_rows(table)
        assert keys.tolist() == sorted(rows)
        for key, row in zip(keys.tolist(), weights, strict=True):
            np.testing.assert_array_equal(row, rows[key])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), copies=st.integers(2, 200))
def test_duplicate_keys_equal_one_key_with_the_summed_gradient(seed, copies):
    rng = np.random.default_rng(seed)
    keys = ref.u64(rng.integers(0, 5, copies))
    grads = rng.normal(size=(copies, 3)).astype(np.float32)
    config = ref.table(dim=3, optimizer="adam", optimizer_params={"lr": 0.1})
    doubled = _native.SparseShard([config], partitions=2, seed=1)
    single = _native.SparseShard([config], partitions=2, seed=1)
    for shard in (doubled, single):
        shard.pull(ref.u32(5), ref.u64(range(5)), insert=True)
    result = doubled.push(ref.u32(copies), keys, grads.ravel())
    assert (result.applied, result.missing) == (copies, 0)
    distinct = np.unique(keys)
    sums = np.zeros((len(distinct), 3), np.float32)
    for key, grad in zip(keys, grads, strict=True):  # in request order, float32
        sums[np.searchsorted(distinct, key)] += grad
    single.push(ref.u32(len(distinct)), distinct, sums.ravel())
    for a, b in zip(doubled.export_rows(0), single.export_rows(0), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_missing_key_never_shifts_the_gradients_behind_it():
    """Persia's cursor bug: one evicted key gave every later key another key's gradient."""
    shard = make_shard((2, 3), partitions=16)
    known = ref.u64([1, 3, 8])
    before = ref.floats(shard.pull(ref.u32(2, 1), known, insert=True))
    counts = ref.u32(3, 2)
    keys = ref.u64([1, 2, 3, 9, 8])  # 2 and 9 are missing
    grads = np.arange(2 * 3 + 3 * 2, dtype=np.float32)
    result = shard.push(counts, keys, grads)
    assert (result.applied, result.missing) == (3, 2)
    used = np.concatenate([grads[0:2], grads[4:6], grads[9:12]])
    after = ref.floats(shard.pull(ref.u32(2, 1), known, insert=False))
    np.testing.assert_array_equal(after, before - np.float32(0.5) * used)


@pytest.mark.parametrize(
    "initializer",
    [
        ("zeros", {}),
        ("constant", {"value": 0.25}),
        ("uniform", {"low": -1.0, "high": 3.0}),
        ("normal", {"mean": 1.0, "stddev": 2.0}),
    ],
    ids=lambda i: i[0],
)
def test_initial_rows_depend_on_nothing_but_seed_table_key_and_column(initializer):
    name, params = initializer
    tables = [ref.table(f"t{i}", 5, initializer=name, initializer_params=params) for i in range(2)]
    rng = np.random.default_rng(0)
    keys = np.concatenate([ref.u64(ref.EXTREME_KEYS), rng.integers(0, 2**63, 300).astype("u8")])
    counts = ref.u32(len(keys), 0)
    expected = b""
    for partitions, insert in [(1, True), (1024, True), (16, False)]:
        shard = _native.SparseShard(tables, partitions=partitions, seed=9)
        order = rng.permutation(len(keys))
        shard.pull(counts, keys[order], insert=insert)
        values = shard.pull(counts, keys, insert=False)
        expected = expected or values
        assert values == expected
    if name in ("uniform", "normal"):
        other_seed = _native.SparseShard(tables, partitions=1, seed=10)
        assert other_seed.pull(counts, keys, insert=False) != expected
        other_table = ref.u32(0, len(keys))
        assert shard.pull(other_table, keys, insert=False) != expected
        rows = ref.floats(expected).reshape(-1, 5)
        assert len(np.unique(rows)) > 0.99 * rows.size


def test_initial_rows_are_the_same_bits_on_every_machine():
    """Frozen values: a change here breaks every model that relies on rows not yet trained."""
    shards = {}
    for name, params in [("uniform", {"low": -1.0, "high": 1.0}), ("normal", {"stddev": 1.0})]:
        config = ref.table(dim=2, initializer=name, initializer_params=params)
        shards[name] = _native.SparseShard([config], partitions=2, seed=7)
    drawn = {
        name: shard.pull(ref.u32(2), ref.u64([0, 2**64 - 1]), insert=False).hex()
        for name, shard in shards.items()
    }
    assert drawn == {
        "uniform": "ef187ebe0835863e27df863e63ffbb3e",
        "normal": "b4e3a1be6859ab3ef83aac3eab9df43e",
    }


def test_random_initial_rows_have_the_distribution_they_claim():
    keys = ref.u64(range(50_000))
    for name, params, mean, std in [
        ("uniform", {"low": -1.0, "high": 3.0}, 1.0, 4 / np.sqrt(12)),
        ("normal", {"mean": 1.0, "stddev": 2.0}, 1.0, 2.0),
    ]:
        config = ref.table(dim=2, initializer=name, initializer_params=params)
        shard = _native.SparseShard([config], partitions=1, seed=1)
        values = ref.floats(shard.pull(ref.u32(len(keys)), keys, insert=False)).astype(float)
        assert abs(values.mean() - mean) < 0.03
        assert abs(values.std() - std) < 0.03
        columns = values.reshape(-1, 2)
        assert abs(np.corrcoef(columns.T)[0, 1]) < 0.02
        if name == "uniform":
            assert -1.0 <= values.min() < -0.99 and 2.99 < values.max() <= 3.0
        else:
            beyond = np.mean(np.abs(values - 1.0) > 3 * 2.0)
            assert abs(beyond - 0.0027) < 0.001


@pytest.mark.parametrize("partitions", [1, 8, 1024])
def test_partitions_are_balanced_for_any_pattern_of_keys(partitions):
    n = 64 * partitions
    numbers = np.arange(n, dtype=np.uint64)
    for pattern in (numbers, numbers << np.uint64(32), ~numbers, numbers * np.uint64(2**20 + 1)):
        owners = _native.partition_of(3, pattern, partitions)
        loads = np.bincount(owners, minlength=partitions)
        assert owners.dtype == np.uint32
        assert loads.sum() == n
        assert loads.max() <= 64 + 6 * 8  # mean + 6 sigma


def test_partition_is_the_top_bits_so_halving_the_count_merges_neighbours():
    keys = np.random.default_rng(0).integers(0, 2**63, 1000).astype(np.uint64)
    fine = _native.partition_of(1, keys, 65536)
    for partitions in (1, 2, 1024):
        coarse = _native.partition_of(1, keys, partitions)
        np.testing.assert_array_equal(coarse, fine // (65536 // partitions))


def test_memory_follows_the_number_of_rows():
    shard = make_shard((16, 16), partitions=4)
    assert shard.bytes() == 0
    keys = ref.u64(range(100_000))
    shard.pull(ref.u32(100_000, 0), keys, insert=True)
    per_row = shard.bytes() / 100_000
    assert 64 + 16 <= per_row < 64 + 48
    shard.clear()
    assert shard.bytes() == 0
    assert shard.rows().tolist() == [0, 0]


def test_many_threads_lose_no_update_and_see_no_torn_row():
    config = ref.table(
        dim=32,
        optimizer="sgd",
        optimizer_params={"lr": 1.0},
        initializer="zeros",
        initializer_params={},
    )
    shard = _native.SparseShard([config], partitions=4, seed=0)
    keys = ref.u64(range(50))
    shard.pull(ref.u32(50), keys, insert=True)
    errors = []

    def write():
        grads = np.full(50 * 32, -1.0, np.float32)
        for _ in range(200):
            shard.push(ref.u32(50), keys, grads)

    def read():
        for _ in range(200):
            rows = ref.floats(shard.pull(ref.u32(50), keys, insert=False)).reshape(50, 32)
            if (rows != rows[:, :1]).any():
                errors.append(rows)
            shard.dump_partition(1)

    threads = [threading.Thread(target=f) for f in (write, write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert (ref.floats(shard.pull(ref.u32(50), keys, insert=False)) == 400.0).all()


def test_threads_change_no_bit():
    rng = np.random.default_rng(4)
    config = ref.table(dim=8, optimizer="adagrad")
    one = _native.SparseShard([config], partitions=64, seed=1)
    four = _native.SparseShard([config], partitions=64, seed=1, threads=4)
    for _ in range(3):
        keys = ref.u64(rng.integers(0, 6000, 20_000))  # enough keys for a team, many of them equal
        grads = rng.normal(size=keys.size * 8).astype(np.float32)
        counts = ref.u32(keys.size)
        assert one.pull(counts, keys, insert=True) == four.pull(counts, keys, insert=True)
        results = [shard.push(counts, keys, grads) for shard in (one, four)]
        assert [(r.applied, r.missing) for r in results] == [(keys.size, 0)] * 2
    assert one.erase(ref.u32(9000), keys[:9000]) == four.erase(ref.u32(9000), keys[:9000])
    for p in range(64):
        assert one.dump_partition(p) == four.dump_partition(p)


def test_memory_follows_the_rows_both_ways():
    shard = _native.SparseShard([ref.table(dim=16, optimizer="adagrad")], partitions=16, seed=1)
    keys = ref.u64(range(100_000))
    shard.pull(ref.u32(keys.size), keys, insert=True)
    full = shard.bytes()
    assert full <= keys.size * (2 * 16 * 4 + 24)  # weights, state and the overhead of a row
    assert shard.erase(ref.u32(90_000), keys[10_000:]) == 90_000
    assert shard.bytes() < 0.2 * full
    values = shard.pull(ref.u32(10_000), keys[:10_000], insert=False)
    shard.compact()
    assert shard.pull(ref.u32(10_000), keys[:10_000], insert=False) == values
    assert shard.rows().tolist() == [10_000]


def test_threads_out_of_bounds_are_refused():
    with pytest.raises(ValueError, match="threads: must be 1 to 256, got 0"):
        _native.SparseShard([ref.table()], partitions=1, seed=0, threads=0)
