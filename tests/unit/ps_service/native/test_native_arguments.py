"""Bad arguments raise ValueError naming the argument; nothing aborts, nothing is half done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ps_service import _native
from tests.unit.ps_service.native import reference as ref


@pytest.fixture
def shard():
    tables = [ref.table("a", 2), ref.table("b", 3)]
    return _native.SparseShard(tables, partitions=4, seed=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 0}, "dim 0, allowed is 1 to 4096"),
        ({"dim": 4097}, "dim 4097, allowed is 1 to 4096"),
        ({"name": ""}, "name: table name"),
        (
            {"optimizer": "adamax"},
            "table 't': unknown optimizer 'adamax'; known are: sgd, momentum",
        ),
        ({"optimizer_params": {"rate": 1.0}}, "optimizer 'adagrad' has no parameter 'rate'.*lr, i"),
        ({"optimizer_params": {"lr": float("nan")}}, "parameter 'lr' is nan"),
        ({"optimizer_params": {"lr": float("inf")}}, "parameter 'lr' is inf"),
        ({"optimizer_params": {"lr": -0.1}}, "parameter 'lr' is -0.1, allowed is 0 to"),
        ({"optimizer": "sgd", "optimizer_params": {"epsilon": 1.0}}, "'sgd' has no parameter"),
        ({"initializer": "ones"}, "unknown initializer 'ones'; known are: zeros, constant"),
        ({"initializer_params": {"low": 1.0, "high": 0.0}}, "'low' is above 'high'"),
        ({"initializer": "zeros", "initializer_params": {"x": 1.0}}, "it takes: none"),
    ],
)
def test_a_table_names_what_is_wrong_with_it(changes, message):
    with pytest.raises(ValueError, match=message):
        ref.table(**changes)


def test_a_table_shows_its_resolved_parameters():
    config = ref.table(dim=7, optimizer="adam", optimizer_params={"lr": 0.5})
    assert (config.name, config.dim, config.optimizer, config.initializer) == (
        "t",
        7,
        "adam",
        "uniform",
    )
    assert config.optimizer_params == {**_native.OPTIMIZERS["adam"], "lr": 0.5}
    assert config.initializer_params == {"low": -0.1, "high": 0.1}
    assert config.state_floats == 15


@pytest.mark.parametrize("partitions", [0, -1, 3, 131072])
def test_partitions_must_be_a_power_of_two(partitions):
    with pytest.raises(ValueError, match="partitions: must be a power of two"):
        _native.SparseShard([ref.table()], partitions=partitions, seed=0)
    with pytest.raises(ValueError, match="partitions: must be a power of two"):
        _native.partition_of(0, ref.u64([1]), partitions)


def test_tables_must_be_some_and_distinct():
    with pytest.raises(ValueError, match="tables: a shard has 1 to"):
        _native.SparseShard([], partitions=1, seed=0)
    with pytest.raises(ValueError, match="tables: the name 't' is used twice"):
        _native.SparseShard([ref.table(), ref.table()], partitions=1, seed=0)


BAD_KEYS = [
    ([1, 2], "keys: expected a C-contiguous array or buffer, got <class 'list'>"),
    (np.array([1, 2], np.int64), "keys: expected an array of uint64, got an array of int64"),
    (np.array([1.0, 2.0]), "keys: expected an array of uint64, got an array of float64"),
    (np.array([[1, 2]], np.uint64), r"keys: expected 1 dimension\(s\), got shape \(1, 2\)"),
    (np.arange(4, dtype=np.uint64)[::2], "keys: expected a C-contiguous"),
    (np.array([1, 2], ">u8"), "keys: expected an array of uint64, got an array of >u8"),
    (np.zeros(24, np.uint8)[1:17].view(np.uint64), "keys: expected memory aligned to 8 bytes"),
    (None, "keys: expected a C-contiguous array or buffer, got <class 'NoneType'>"),
]


@pytest.mark.parametrize(("keys", "message"), BAD_KEYS, ids=range(len(BAD_KEYS)))
def test_bad_keys_are_named(shard, keys, message):
    with pytest.raises(ValueError, match=message):
        shard.pull(ref.u32(2, 0), keys, insert=True)
    with pytest.raises(ValueError, match=message):
        shard.push(ref.u32(2, 0), keys, np.zeros(4, np.float32))
    with pytest.raises(ValueError, match=message):
        _native.partition_of(0, keys, 4)
    assert shard.rows().sum() == 0


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (ref.u32(), "counts: must hold a positive multiple of 2"),
        (ref.u32(2), "counts: must hold a positive multiple of 2"),
        (ref.u32(1, 0), "keys: counts add up to 1 keys, got 2"),
        (ref.u32(2**32 - 1, 2**32 - 1), "keys: counts add up to 8589934590 keys, got 2"),
        (np.array([2, 0]), "counts: expected an array of uint32"),
    ],
)
def test_counts_must_match_the_keys(shard, counts, message):
    with pytest.raises(ValueError, match=message):
        shard.pull(counts, ref.u64([1, 2]), insert=True)
    with pytest.raises(ValueError, match=message):
        shard.push(counts, ref.u64([1, 2]), np.zeros(4, np.float32))
    assert shard.rows().sum() == 0


def test_gradients_must_have_the_size_of_the_keys(shard):
    shard.pull(ref.u32(1, 1), ref.u64([1, 2]), insert=True)
    before = shard.dump_partition(0)
    with pytest.raises(ValueError, match="grads: the keys have 5 floats, got 4"):
        shard.push(ref.u32(1, 1), ref.u64([1, 2]), np.ones(4, np.float32))
    with pytest.raises(ValueError, match="grads: expected an array of float32"):
        shard.push(ref.u32(1, 1), ref.u64([1, 2]), np.ones(5))
    assert shard.dump_partition(0) == before


@pytest.mark.parametrize("bad", [-1, 4, 2**40])
def test_partition_and_table_must_exist(shard, bad):
    with pytest.raises(ValueError, match=f"partition: must be 0 to 3, got {bad}"):
        shard.dump_partition(bad)
    with pytest.raises(ValueError, match=f"table: must be 0 to 1, got {bad}"):
        shard.export_rows(bad)


def test_read_only_arrays_and_two_dimensional_counts_are_welcome(shard):
    keys = np.frombuffer(ref.u64([1, 2, 3]).tobytes(), np.uint64)
    counts = np.frombuffer(ref.u32(1, 1, 1, 0).tobytes(), np.uint32).reshape(2, 2)
    values = shard.pull(counts, keys, insert=True)
    grads = np.frombuffer(values, np.float32)
    assert not (keys.flags.writeable or counts.flags.writeable or grads.flags.writeable)
    assert shard.push(counts, keys, grads).applied == 3


@pytest.mark.parametrize("size", [0, 1, 3, 20_000])  # the last is streamed
def test_an_array_of_rows_has_the_bytes_of_a_pull_and_begins_at_a_cache_line(size):
    table = ref.table("t", 16, optimizer="adagrad")
    shard = _native.SparseShard([table], partitions=8, seed=3, threads=2)
    keys = np.random.default_rng(1).integers(0, 2**64, size, dtype=np.uint64)
    array = shard.pull_array(ref.u32(size), keys, insert=True)
    assert array.shape == (16 * size,)
    assert array.ctypes.data % 64 == 0 or not size
    assert array.tobytes() == shard.pull(ref.u32(size), keys, insert=False)
    assert shard.rows().tolist() == [size]
    with pytest.raises(ValueError, match="keys: counts add up to"):
        shard.pull_array(ref.u32(size + 1), keys, insert=True)


def test_rows_that_are_streamed_lie_beside_initial_values_of_keys_without_one():
    """Some parts of the request have all their rows, some have none, most have both."""
    shard = _native.SparseShard([ref.table("t", 32)], partitions=8, seed=3, threads=1)
    keys = np.random.default_rng(1).integers(0, 2**64, 20_000, dtype=np.uint64)
    known = np.concatenate([keys[:5_000], keys[10_000:11_000]])
    shard.pull(ref.u32(known.size), known, insert=True)
    shard.push(ref.u32(known.size), known, np.ones(32 * known.size, np.float32))
    array = shard.pull_array(ref.u32(keys.size), keys, insert=False)
    assert array.tobytes() == shard.pull(ref.u32(keys.size), keys, insert=False)
    assert shard.rows().tolist() == [known.size]


def test_an_empty_request_is_legal(shard):
    assert shard.pull(ref.u32(0, 0), ref.u64([]), insert=True) == b""
    result = shard.push(ref.u32(0, 0), ref.u64([]), np.zeros(0, np.float32))
    assert repr(result) == "PushResult(applied=0, missing=0)"
    assert _native.partition_of(0, ref.u64([]), 4).shape == (0,)


PLANNER: dict[str, Any] = {
    "feature_tables": ref.u32(0, 1),
    "dims": ref.u32(2, 3),
    "columns": ref.u32(0, 2),
    "combiners": ["sum", "mean"],
    "owners": np.zeros(4, np.uint16),
    "shards": 1,
    "width": 5,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feature_tables": ref.u32(0, 2)}, r"feature_tables\[1\] is 2, must be below 2"),
        ({"dims": ref.u32()}, "dims: there must be at least one table"),
        ({"dims": ref.u32(2, 0)}, "dims: every dim must be at least 1"),
        ({"columns": ref.u32(0)}, "columns: expected 2 values, got 1"),
        ({"columns": ref.u32(0, 1)}, "columns.*overlap"),
        ({"columns": ref.u32(0, 3)}, r"columns\[1\]: columns 3 to 6 exceed the width 5"),
        ({"combiners": ["sum"]}, "combiners: expected 2 values, got 1"),
        ({"combiners": ["sum", "max"]}, "unknown combiner 'max'"),
        ({"owners": np.zeros(3, np.uint16)}, "owners: its length must be a power of two"),
        ({"owners": np.ones(4, np.uint16)}, r"owners\[0\] is 1, must be below 1"),
        ({"owners": np.zeros(4, np.uint32)}, "owners: expected an array of uint16"),
        ({"shards": 0}, "shards"),
        ({"width": -1}, "width"),
        ({"threads": 0}, "threads: must be 1 to 256, got 0"),
        ({"threads": 257}, "threads: must be 1 to 256, got 257"),
    ],
)
def test_a_planner_names_what_is_wrong_with_it(changes, message):
    with pytest.raises(ValueError, match=message):
        _native.Planner(**{**PLANNER, **changes})


@pytest.mark.parametrize(
    ("offsets", "batch", "message"),
    [
        ([0, 1], 1, r"offsets: expected 3 values \(features \* batch \+ 1\), got 2"),
        ([1, 1, 2], 1, r"offsets\[0\] is 1, not 0"),
        ([0, 2, 1], 1, r"offsets\[2\] is 1, below the value before it, 2"),
        ([0, -1, 2], 1, r"offsets\[1\] is -1, below"),
        ([0, 1, 3], 1, "offsets: the last is 3, but there are 2 keys"),
        ([0, 1, 2], -1, "batch: must be 0 to"),
        ([0, 1, 2], 2**31, "batch: must be 0 to"),
    ],
)
def test_offsets_must_describe_the_keys(offsets, batch, message):
    planner = _native.Planner(**PLANNER)
    with pytest.raises(ValueError, match=message):
        planner.plan(ref.u64([1, 2]), np.array(offsets, np.int32), batch)


def test_gather_and_scatter_check_their_matrices():
    plan = _native.Planner(**PLANNER).plan(ref.u64([1, 2]), np.array([0, 1, 2], np.int32), 1)
    values, out = np.zeros(5, np.float32), np.zeros((1, 5), np.float32)
    plan.gather(values, out)
    with pytest.raises(ValueError, match="values: expected 5 values, got 4"):
        plan.gather(values[:4], out)
    with pytest.raises(ValueError, match=r"out: expected shape \(1, 5\), got \(1, 4\)"):
        plan.gather(values, np.zeros((1, 4), np.float32))
    with pytest.raises(ValueError, match="out: expected a C-contiguous, writable"):
        plan.gather(values, np.frombuffer(bytes(20), np.float32).reshape(1, 5))
    with pytest.raises(ValueError, match=r"grads: expected shape \(1, 5\), got \(5, 1\)"):
        plan.scatter(np.zeros((5, 1), np.float32))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "grads: expected at least one array, got 0"),
        ([2], r"grads: expected shape \(3, 5\), got \(2, 5\)"),
        ([1, 1], "grads: expected 3 rows in all arrays, got 2"),
        ([1, 2], r"grads: expected shape \(1, 5\), got \(2, 5\)"),
        ([2, 2], r"grads: expected shape \(1, 5\), got \(2, 5\)"),
        ([2, 1, 1], r"grads: expected shape \(0, 5\), got \(1, 5\)"),
        ([4, 0], r"grads: expected shape \(3, 5\), got \(4, 5\)"),
        ([0, 3], r"grads: expected shape \(0, 5\), got \(3, 5\)"),
    ],
)
def test_pieces_of_a_gradient_are_equally_long_but_for_the_last(rows, message):
    plan = _native.Planner(**PLANNER).plan(ref.u64([1, 2, 3]), np.arange(7, dtype=np.int32) // 2, 3)
    with pytest.raises(ValueError, match=message):
        plan.scatter(*(np.zeros((n, 5), np.float32) for n in rows))


def test_a_dense_block_checks_its_arguments():
    with pytest.raises(ValueError, match="unknown optimizer 'x'"):
        _native.DenseBlock(np.zeros(2, np.float32), optimizer="x", optimizer_params={})
    with pytest.raises(ValueError, match="values: expected an array of float32"):
        _native.DenseBlock(
            np.zeros(2),  # type: ignore[arg-type]
            optimizer="sgd",
            optimizer_params={},
        )
    block = _native.DenseBlock(np.ones(2, np.float32), optimizer="sgd", optimizer_params={})
    with pytest.raises(ValueError, match="grads: the block has 2 floats, got 3"):
        block.apply(np.zeros(3, np.float32))
    assert (block.step, block.values().tolist()) == (0, [1.0, 1.0])
    assert _native.DenseBlock(
        np.zeros(0, np.float32), optimizer="adam", optimizer_params={}
    ).values().shape == (0,)
