"""The size of a job: against numbers worked out by hand, and against a real shard full of rows."""

from __future__ import annotations

import numpy as np
import pytest

from gateway import sizing
from gateway.compile import PARTITIONS
from ps_service import _native, tables
from services.api import spec as jobspec


def make(features: dict, **more: object) -> jobspec.JobSpec:
    return jobspec.validate(
        {
            "name": "a",
            "model": {"name": "lr"},
            "data": {"source": "synthetic://criteo"},
            "features": {"sparse": features},
            **more,
        }
    )


def test_a_table_is_rows_times_bytes() -> None:
    spec = make(
        {"C1": {"dim": 8}, "C2": {"dim": 4, "optimizer": "sgd", "eviction": {"lru": {"rows": 500}}}}
    )
    size = sizing.size(spec, assumed_rows=2_000_000)
    first, second = size.tables
    # adagrad: 8 weights and 8 accumulators of 4 bytes; sgd: 4 weights.
    assert (first.rows, first.rows_from, first.row_bytes) == (2_000_000, "assumed", 64 + 40)
    assert (second.rows, second.rows_from, second.row_bytes) == (500, "eviction", 16 + 40)
    assert size.memory_bytes == 2_000_000 * 104 + 500 * 56
    assert size.rows == 2_000_500


def test_features_that_share_a_table_are_one_table() -> None:
    spec = make({"a": {"dim": 2, "table": "t"}, "b": {"dim": 2, "table": "t"}})
    (table,) = sizing.size(spec).tables
    assert (table.name, table.rows) == ("t", sizing.ASSUMED_ROWS)


def test_boundaries_bound_the_rows() -> None:
    spec = make({"a": {"bucketize": [1, 2, 3]}})
    assert sizing.size(spec).tables[0].rows == 5
    shared = make({"a": {"bucketize": [1.0], "table": "t"}, "b": {"table": "t"}})
    assert sizing.size(shared).tables[0].rows_from == "assumed"


def test_a_count_filter_takes_its_own_memory() -> None:
    counted = {"C1": {"dim": 4, "admission": {"count": {"keys": 10_000_000, "error": 0.01}}}}
    with_filter, without = (sizing.size(make(f)) for f in (counted, {"C1": {"dim": 4}}))
    more = with_filter.memory_bytes - without.memory_bytes
    assert more / 10_000_000 == pytest.approx(4.8, abs=0.1)  # "about 5 bytes for each"


def test_the_largest_shard_has_the_largest_share() -> None:
    size = sizing.size(make({"C1": {}}, resources={"sparse_ps": 3}))
    assert size.shard_memory_bytes == pytest.approx(size.memory_bytes / 3, rel=0.002)
    assert size.shard_memory_bytes >= size.memory_bytes / 3


def test_a_step_moves_keys_and_rows_both_ways() -> None:
    size = sizing.size(make({"a": {"dim": 3}, "b": {"dim": 5}}, training={"batch_size": 10}))
    assert size.step.keys == 20
    assert size.step.pull_bytes == size.step.push_bytes == 20 * 8 + 10 * (3 + 5) * 4


@pytest.mark.parametrize(("dim", "rows"), [(4, 2_000), (4, 1_000_000), (16, 1_000_000)])
def test_the_estimate_is_near_a_real_shard(dim: int, rows: int) -> None:
    spec = make({"C1": {"dim": dim}})
    table = tables.table_spec("C1", dim, spec.optimizers.sparse, None)
    shard = _native.SparseShard([table.native()], partitions=PARTITIONS, seed=0)
    shard.pull(np.array([rows], np.uint32), np.arange(rows, dtype=np.uint64), insert=True)
    estimate = sizing.size(spec, assumed_rows=rows).memory_bytes
    assert estimate == pytest.approx(shard.bytes(), rel=0.25)
