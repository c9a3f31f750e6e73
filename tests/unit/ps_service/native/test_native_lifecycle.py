"""Rows coming and going: the shard against a Python dict model with every verb interleaved."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps_service import _native
from tests.unit.ps_service.native import reference as ref

START = 1_800_000_000
TTL = 50
LIMIT = 6
DIMS = (1, 512)

keys_strategy = st.lists(
    st.one_of(st.sampled_from(ref.EXTREME_KEYS), st.integers(0, 12)), max_size=10
)
operation = st.tuples(
    st.sampled_from(["pull", "pull", "push", "peek", "evict", "erase", "wait", "reload"]),
    st.lists(st.tuples(keys_strategy, keys_strategy), min_size=1, max_size=2),  # groups x tables
    st.integers(0, 60),
)


def tables():
    """The first by count and ttl, the second by lru; sgd with lr 0.5 is exact in float32."""
    policies = [
        _native.RowPolicy(
            admission="count",
            admission_params={"n": 2, "keys": 1000, "error": 1e-6},
            eviction={"ttl": {"seconds": TTL}},
        ),
        _native.RowPolicy(eviction={"lru": {"rows": LIMIT}}),
    ]
    return [
        ref.table(f"t{i}", dim, optimizer="sgd", optimizer_params={"lr": 0.5}, rows=rows)
        for i, (dim, rows) in enumerate(zip(DIMS, policies, strict=True))
    ]


class Model:
    """What the shard promises, key by key. One partition, so that its limit is the table's."""

    def __init__(self):
        self.rows: list[dict] = [{}, {}]  # key -> weights
        self.seen: list[dict] = [{}, {}]
        self.occurrences = {}  # of keys of the first table without a row
        self.removed: list[list] = [[], []]
        self.tally = {"rejected": 0, "admitted": 0, "dropped": 0, "evicted": 0}

    def pull(self, groups, now, initial):
        values = [np.zeros(0, np.float32)]
        for table, key in places(groups):
            if key not in self.rows[table] and self._admits(table, key):
                self.rows[table][key] = initial(table, key)
            if key in self.rows[table]:
                self.seen[table][key] = max(now, self.seen[table].get(key, 0))
            values.append(self.rows[table].get(key, initial(table, key)))
        return np.concatenate(values)

    def _admits(self, table, key):
        if table == 0:
            self.occurrences[key] = min(15, self.occurrences.get(key, 0) + 1)
            if self.occurrences[key] < 2:
                self.tally["rejected"] += 1
                return False
        self.tally["admitted"] += 1
        return True

    def push(self, groups, grads):
        sums: dict = {}
        at = missing = 0
        for table, key in places(groups):
            grad = grads[at : at + DIMS[table]]
            at += DIMS[table]
            if key not in self.rows[table]:
                missing += 1
                continue
            place = (table, key)
            sums[place] = sums[place] + grad if place in sums else grad.copy()
        for (table, key), grad in sums.items():
            self.rows[table][key] = self.rows[table][key] - np.float32(0.5) * grad
        self.tally["dropped"] += missing
        return missing

    def evict(self, now):
        old = [key for key, seen in self.seen[0].items() if now - seen > TTL]
        for key in old:
            self.remove(0, key)
        excess = len(self.rows[1]) - LIMIT
        if excess > 0:
            ages = sorted(self.seen[1].values())
            # Rows seen in the same second are equally old: which of them go, the hash decides.
            return len(old), excess, ages[excess - 1]
        return len(old), 0, 0

    def remove(self, table, key):
        del self.rows[table][key], self.seen[table][key]
        self.removed[table].append(key)


def places(groups):
    return [(t, key) for group in groups for t, keys in enumerate(group) for key in keys]


def arrays(groups):
    counts = ref.u32(*(len(keys) for group in groups for keys in group))
    return counts, ref.u64([key for group in groups for keys in group for key in keys])


def initial_row(table, key):
    fresh = _native.SparseShard(tables(), partitions=1, seed=11)
    counts = ref.u32(*(int(t == table) for t in range(2)))
    return ref.floats(fresh.pull(counts, ref.u64([key]), insert=False))


@settings(max_examples=80, deadline=None)
@given(script=st.lists(operation, max_size=14))
def test_it_behaves_as_a_dict_of_rows_that_come_and_go(script):
    shard = _native.SparseShard(tables(), partitions=1, seed=11)
    shard.removed()  # from here on removals are listed
    model = Model()
    rng = np.random.default_rng(len(script))
    now = START
    for step, (name, groups, number) in enumerate(script, start=1):
        counts, keys = arrays(groups)
        if name == "pull":
            values = ref.floats(shard.pull(counts, keys, insert=True, step=step, event_time=now))
            np.testing.assert_array_equal(values, model.pull(groups, now, initial_row))
        elif name == "peek":
            values = ref.floats(shard.pull(counts, keys, insert=False, event_time=now + 10_000))
            expected = [model.rows[t].get(k, initial_row(t, k)) for t, k in places(groups)]
            np.testing.assert_array_equal(values, np.concatenate([np.zeros(0), *expected]))
        elif name == "push":
            size = sum(DIMS[t] for t, _ in places(groups))
            grads = rng.normal(size=size).astype(np.float32)
            result = shard.push(counts, keys, grads, step=step, event_time=now)
            assert result.missing == model.push(groups, grads)
        elif name == "evict":
            check_eviction(shard, model, now)
        elif name == "erase":
            present = {place for place in places(groups) if place[1] in model.rows[place[0]]}
            assert shard.erase(counts, keys) == len(present)
            for table, key in present:
                model.remove(table, key)
        elif name == "reload":
            rows, ages = shard.dump_partition(0), shard.dump_lifecycle(0, now)
            shard.load_partition(rows)
            assert ages == b"" or shard.load_lifecycle(ages) == sum(map(len, model.rows))
            assert shard.dump_lifecycle(0, now) == ages
            assert not shard.removed()[2]  # what a reload replaces nobody lists
            model.removed = [[], []]
        else:
            now += number
        assert_same(shard, model)


def check_eviction(shard, model, now):
    old, excess, oldest = model.evict(now)
    assert shard.evict(0, now) == old + excess
    model.tally["evicted"] += old + excess
    left = set(shard.export_rows(1)[0].tolist())
    for key in set(model.rows[1]) - left:
        assert model.seen[1][key] <= oldest
        model.remove(1, key)
    assert all(model.seen[1][key] >= oldest for key in left)


def assert_same(shard, model):
    counts, keys, complete = shard.removed()
    assert complete
    assert [sorted(part.tolist()) for part in np.split(keys, [counts[0]])] == [
        sorted(part) for part in model.removed
    ]
    model.removed = [[], []]
    for table, rows in enumerate(model.rows):
        stored, weights, _ = shard.export_rows(table)
        assert stored.tolist() == sorted(rows)
        for key, row in zip(stored.tolist(), weights, strict=True):
            np.testing.assert_array_equal(row, rows[key])
    stats = shard.stats()
    assert [s.rows for s in stats] == [len(rows) for rows in model.rows]
    found = {
        "rejected": sum(s.rejected for s in stats),
        "admitted": sum(s.admitted for s in stats),
        "dropped": sum(s.dropped for s in stats),
        "evicted": sum(sum(s.evicted.values()) for s in stats),
    }
    assert found == model.tally


@pytest.mark.parametrize("kind", ["probability", "count"])
def test_who_is_admitted_does_not_depend_on_shards_or_order(kind):
    params = {"p": 0.3} if kind == "probability" else {"n": 2, "keys": 10_000, "error": 0.001}
    policy = _native.RowPolicy(admission=kind, admission_params=params)
    rng = np.random.default_rng(0)
    steps = [rng.integers(0, 3000, 2000).astype(np.uint64) for _ in range(5)]
    expected: list[int] = []
    for pieces in (1, 4):
        shard = _native.SparseShard([ref.table(rows=policy)], partitions=16, seed=3)
        for step, keys in enumerate(steps, start=1):
            distinct = rng.permutation(np.unique(keys))
            for part in np.array_split(distinct, pieces):
                shard.pull(ref.u32(len(part)), part, insert=True, step=step)
        admitted = shard.export_rows(0)[0].tolist()
        expected = expected or admitted
        assert admitted == expected
    assert 300 < len(expected) < 3000


def test_the_share_of_early_admissions_is_the_one_that_was_asked_for():
    policy = _native.RowPolicy(
        admission="count", admission_params={"n": 2, "keys": 200_000, "error": 0.05}
    )
    shard = _native.SparseShard([ref.table(dim=1, rows=policy)], partitions=64, seed=1)
    keys = ref.u64(range(200_000))
    shard.pull(ref.u32(len(keys)), keys, insert=True)
    stats = shard.stats()[0]
    assert stats.admitted < 0.05 * len(keys)
    assert stats.rejected == len(keys) - stats.admitted
    assert 64 <= stats.gate_bytes < 6 * len(keys)
    shard.pull(ref.u32(len(keys)), keys, insert=True)
    assert shard.stats()[0].rows == len(keys)  # the second time all are


def test_a_policy_shows_what_it_was_given_and_its_defaults():
    policy = _native.RowPolicy(admission="count", eviction={"ttl": {"seconds": 5}, "norm": {}})
    assert policy.admission == "count"
    assert policy.admission_params == _native.ADMISSIONS["count"]
    assert policy.eviction == {"ttl": {"seconds": 5}, "norm": _native.EVICTION_RULES["norm"]}
    assert ref.table(rows=policy).rows.eviction == policy.eviction
    assert ref.table().rows.admission == "all"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"admission": "never"}, "unknown admission 'never'; known are: all, count, probability"),
        (
            {"admission": "count", "admission_params": {"n": 99}},
            "admission 'count': parameter 'n' is 99, allowed is 1 to 15",
        ),
        ({"eviction": {"age": {}}}, "unknown eviction rule 'age'; known are: ttl, lru"),
        ({"eviction": {"ttl": {"days": 1}}}, "eviction 'ttl' has no parameter 'days'"),
        ({"eviction": {"lru": {}, "lfu": {}}}, "'lru' and 'lfu' exclude each other"),
    ],
)
def test_bad_policies_are_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        _native.RowPolicy(**arguments)


@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (4, 1), (4,), (2, 0)])
def test_usage_must_fit_the_keys(shape):
    shard = _native.SparseShard([ref.table(dim=1)], partitions=1, seed=1)
    keys, grads = ref.u64([1, 2]), np.zeros(2, np.float32)
    with pytest.raises(ValueError, match="usage: expected"):
        shard.push(ref.u32(2), keys, grads, usage=np.zeros(shape, np.float32))


def aged_shard(rules, keys=100):
    config = ref.table(dim=1, rows=_native.RowPolicy(eviction=rules))
    shard = _native.SparseShard([config], partitions=2, seed=1)
    for step in range(1, 31):
        named = ref.u64(range(0, keys, step))
        shard.pull(ref.u32(len(named)), named, insert=True, step=step, event_time=START + step)
    return config, shard


@pytest.mark.parametrize(
    "rules", [{"ttl": {"seconds": 5}}, {"lfu": {"rows": 40, "half_life": 20}}], ids=["ttl", "lfu"]
)
def test_age_and_usage_survive_a_restore(rules):
    """Restored rows that all look new would make the next eviction a lottery."""
    config, shard = aged_shard(rules)
    restored = _native.SparseShard([config], partitions=2, seed=1)
    for p in range(2):
        restored.load_partition(shard.dump_partition(p))
        ages = shard.dump_lifecycle(p, START + 30)
        assert restored.load_lifecycle(ages) == len(ages[35:-4]) // 16
        assert restored.dump_lifecycle(p, START + 30) == ages
    for p in range(2):
        assert shard.evict(p, START + 30) == restored.evict(p, START + 30) > 0
    np.testing.assert_array_equal(shard.export_rows(0)[0], restored.export_rows(0)[0])


def test_ages_of_another_policy_are_translated():
    _, by_time = aged_shard({"ttl": {"seconds": 5}})
    config = ref.table(dim=1, rows=_native.RowPolicy(eviction={"ttl": {"seconds": 5}, "lfu": {}}))
    by_usage = _native.SparseShard([config], partitions=2, seed=1)
    for p in range(2):
        by_usage.load_partition(by_time.dump_partition(p))
        by_usage.load_lifecycle(by_time.dump_lifecycle(p, START + 30))
        assert by_usage.evict(p, START + 31) == by_time.evict(p, START + 31)


def test_tables_that_evict_nothing_have_no_ages():
    shard = _native.SparseShard([ref.table(dim=1)], partitions=1, seed=1)
    shard.pull(ref.u32(2), ref.u64([1, 2]), insert=True, event_time=START)
    assert shard.dump_lifecycle(0, START) == b""


def test_damaged_lifecycle_blocks_are_refused_and_change_nothing():
    _, shard = aged_shard({"lfu": {}}, keys=9)
    block = shard.dump_lifecycle(0, START + 30)
    for at in range(len(block)):
        for changed in (block[:at], block[:at] + bytes([block[at] ^ 0x40]) + block[at + 1 :]):
            with pytest.raises(ValueError, match="lifecycle block"):
                shard.load_lifecycle(changed)
    with pytest.raises(ValueError, match="partitions is 2, expected 4"):
        _native.SparseShard([ref.table()], partitions=4, seed=1).load_lifecycle(block)
    other = _native.SparseShard([ref.table("other")], partitions=2, seed=1)
    with pytest.raises(ValueError, match="table 0 name is 't', expected 'other'"):
        other.load_lifecycle(block)
    assert shard.dump_lifecycle(0, START + 30) == block


def test_the_partition_to_evict_must_be_one_of_the_shards():
    shard = _native.SparseShard([ref.table()], partitions=2, seed=1)
    with pytest.raises(ValueError, match="partition: must be 0 to 1, got 2"):
        shard.evict(2, START)
