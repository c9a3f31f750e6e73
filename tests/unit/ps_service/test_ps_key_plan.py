"""KeyPlan: slices per shard cover the unique keys and values exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_service import _native, codec
from ps_service.client.plan import KeyPlanner
from ps_service.sharding import ShardMap
from ps_service.tables import table_spec
from services.api.optimizers import OptimizerSpec
from services.kit.errors import InvalidInput

SGD = OptimizerSpec(name="sgd")
TABLES = [table_spec("a", 3, SGD, None), table_spec("b", 1, SGD, None)]
FEATURE_TABLES = [0, 1, 0]
COLUMNS, WIDTH = [0, 3, 4], 7


def planner(shards: int) -> KeyPlanner:
    return KeyPlanner(
        TABLES, FEATURE_TABLES, COLUMNS, ["sum"] * 3, WIDTH, ShardMap.even(16, shards)
    )


def csr(bags: list[list[list[int]]]) -> tuple[np.ndarray, np.ndarray]:
    """bags[feature][sample] -> keys, offsets."""
    flat = [bag for feature in bags for bag in feature]
    keys = np.array([k for bag in flat for k in bag], dtype=np.uint64)
    return keys, np.cumsum([0, *map(len, flat)]).astype(np.int32)


key = st.one_of(st.integers(0, 5), st.sampled_from([0, 2**64 - 1, 2**63, 2**63 - 1]))


@given(
    st.integers(1, 5),
    st.integers(0, 4).flatmap(
        lambda n: st.lists(
            st.lists(st.lists(key, max_size=3), min_size=n, max_size=n), min_size=3, max_size=3
        )
    ),
)
def test_slices_cover_each_table_key_once_on_its_shard(shards: int, bags) -> None:
    batch = len(bags[0])
    plan = planner(shards).plan(*csr(bags), batch)
    shard_map = ShardMap.even(16, shards)
    wanted = {(FEATURE_TABLES[f], k) for f in range(3) for bag in bags[f] for k in bag}
    seen, value_start = set(), 0
    for shard, part in enumerate(plan.shards):
        counts = np.array(part.counts, np.uint32)
        keys = codec.unpack_table_keys(*part.packed_keys, "keys", counts)
        tables = np.repeat([0, 1], part.counts)
        for table, k in zip(tables.tolist(), keys.tolist(), strict=True):
            partition = int(_native.partition_of(table, np.array([k], dtype=np.uint64), 16)[0])
            assert shard_map.owners[partition] == shard
            seen.add((table, k))
        floats = sum(c * t.dim for c, t in zip(part.counts, TABLES, strict=True))
        assert part.values == slice(value_start, value_start + floats)
        assert part.empty == (len(keys) == 0)
        value_start += floats
    assert seen == wanted
    assert plan.unique_keys == len(wanted)
    assert plan.value_floats == value_start


def test_gather_and_scatter_fit_the_values() -> None:
    plan = planner(2).plan(*csr([[[1, 1], []], [[7], [7]], [[1], [2]]]), 2)
    values = np.ones(plan.value_floats, dtype=np.float32)
    out = np.full((2, WIDTH), 9, dtype=np.float32)
    plan.gather(values, out)
    assert out.tolist() == [[2, 2, 2, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]]
    grads = plan.scatter(np.ones((2, WIDTH), dtype=np.float32))
    assert sorted(grads.tolist()) == [1, 1, 1, 2, 3, 3, 3]


def test_bad_arguments_are_named() -> None:
    keys, offsets = csr([[[1]], [[1]], [[1]]])
    with pytest.raises(InvalidInput, match=r"batch: .*offsets"):
        planner(1).plan(keys, offsets, 2)
    with pytest.raises(InvalidInput, match=r"key planner: .*columns"):
        KeyPlanner(TABLES, FEATURE_TABLES, [0, 3, 5], ["sum"] * 3, WIDTH, ShardMap.even(16, 1))
    with pytest.raises(InvalidInput, match=r"key planner: .*average"):
        KeyPlanner(TABLES, [0], [0], ["average"], 3, ShardMap.even(16, 1))
