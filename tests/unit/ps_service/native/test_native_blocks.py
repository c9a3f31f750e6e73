"""Partition blocks and dense blocks: canonical, complete, and refused when damaged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps_service import _native
from tests.unit.ps_service.native import reference as ref

PARTITIONS = 4


def make_shard(partitions=PARTITIONS, **changes):
    tables = [
        ref.table("user", 3, optimizer="adam", optimizer_params={}),
        ref.table(**{"name": "item", "dim": 2, **changes}),
    ]
    return _native.SparseShard(tables, partitions=partitions, seed=1)


def trained_shard(order=1):
    shard = make_shard()
    keys = ref.u64([*ref.EXTREME_KEYS, *range(2, 40)])[::order].copy()
    for table in (0, 1):
        counts = ref.u32(*(len(keys) if t == table else 0 for t in (0, 1)))
        shard.pull(counts, keys, insert=True)
        dim = (3, 2)[table]
        grads = np.repeat((keys % 7).astype(np.float32), dim)
        shard.push(counts, keys, grads)
    return shard


def blocks_of(shard):
    return [shard.dump_partition(p) for p in range(PARTITIONS)]


def test_a_round_trip_restores_every_bit_of_weights_and_state():
    source, target = trained_shard(), make_shard()
    loaded = [target.load_partition(block) for block in blocks_of(source)]
    assert sum(loaded) == source.rows().sum() == 2 * 44
    for table in (0, 1):
        for a, b in zip(source.export_rows(table), target.export_rows(table), strict=True):
            assert a.dtype == b.dtype
            assert a.tobytes() == b.tobytes()
    assert blocks_of(target) == blocks_of(source)


def test_the_same_rows_give_the_same_bytes_in_any_order_of_insertion():
    assert blocks_of(trained_shard(order=1)) == blocks_of(trained_shard(order=-1))


def test_loading_replaces_what_the_partition_held():
    target = make_shard()
    target.pull(ref.u32(100, 0), ref.u64(range(1000, 1100)), insert=True)
    for block in blocks_of(trained_shard()):
        target.load_partition(bytearray(block))
    assert target.rows().tolist() == [44, 44]


def test_training_goes_on_after_a_load_as_if_nothing_had_happened():
    source, target = trained_shard(), make_shard()
    for block in blocks_of(source):
        target.load_partition(block)
    keys = ref.u64([5, 2**64 - 1, 7777])
    for shard in (source, target):
        shard.pull(ref.u32(3, 0), keys, insert=True)
        shard.push(ref.u32(3, 0), keys, np.ones(9, np.float32))
    assert blocks_of(source) == blocks_of(target)


BLOCK = blocks_of(trained_shard())[2]
DENSE = _native.DenseBlock(
    np.arange(5, dtype=np.float32), optimizer="adam", optimizer_params={"lr": 0.1}
)
DENSE.apply(np.ones(5, np.float32))
DENSE_BLOCK = DENSE.dump()


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(BLOCK) - 1), st.integers(1, 255))
def test_any_damaged_byte_is_refused_and_changes_nothing(at, flip):
    damaged = bytearray(BLOCK)
    damaged[at] ^= flip
    shard = trained_shard()
    before = shard.dump_partition(2)
    with pytest.raises(ValueError, match="partition block: "):
        shard.load_partition(damaged)
    assert shard.dump_partition(2) == before


def test_every_truncation_is_refused():
    shard = make_shard()
    for size in range(len(BLOCK)):
        with pytest.raises(ValueError, match="partition block: "):
            shard.load_partition(BLOCK[:size])
    with pytest.raises(ValueError, match="partition block: "):
        shard.load_partition(BLOCK + b"\0")
    assert shard.rows().sum() == 0


def sealed(body):
    crc = _native.crc32c(bytes(body))
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
    return bytes(body) + masked.to_bytes(4, "little")


def test_a_block_of_the_first_version_holds_float32_rows():
    """It differs in the version and in naming no weight type."""
    body = BLOCK[:-4].replace(b"\4\0fp32", b"")
    old = sealed(body[:8] + b"\1\0\0\0" + body[12:])
    target = make_shard()
    assert target.load_partition(old) > 0
    assert target.dump_partition(2) == BLOCK
    with pytest.raises(ValueError, match="table 1 weights is 'fp32', expected 'bf16'"):
        make_shard(weights="bf16").load_partition(old)


def test_a_dense_block_of_the_first_version_has_no_options():
    schedule = b"\x08\0constant" + b"\1\0\0\0" + b"\6\0warmup" + bytes(8)
    options = schedule + bytes(16)  # clip_value, weight_decay
    assert options in DENSE_BLOCK
    body = DENSE_BLOCK[:-4].replace(options, b"")
    old = sealed(body[:8] + b"\1\0\0\0" + body[12:])
    assert _native.DenseBlock.load(old).dump() == DENSE_BLOCK


def test_blocks_of_different_rows_have_different_checksums():
    """Data followed by its own plain CRC would have one CRC for ever: files could be swapped."""
    blocks = [*blocks_of(trained_shard()), DENSE_BLOCK]
    dense = _native.DenseBlock.load(DENSE_BLOCK)
    dense.apply(np.ones(5, np.float32))
    assert len({_native.crc32c(block) for block in [*blocks, dense.dump()]}) == len(blocks) + 1


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(BLOCK) - 5), st.integers(0, 255), st.integers(1, 8))
def test_a_malicious_block_with_a_right_checksum_is_refused_or_loaded_whole(at, byte, width):
    """Absurd counts must not allocate, and nothing may be read outside the block."""
    body = bytearray(BLOCK[:-4])
    body[at : at + width] = bytes([byte]) * len(body[at : at + width])
    shard = make_shard()
    try:
        loaded = shard.load_partition(sealed(body))
    except ValueError as error:
        assert str(error).startswith("partition block: ")
        assert shard.rows().sum() == 0
    else:
        assert loaded == shard.rows().sum()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (lambda: make_shard(partitions=8), "partitions is 4, expected 8"),
        (lambda: make_shard(dim=5), "table 1 dim is 2, expected 5"),
        (lambda: make_shard(name="other"), "table 1 name is 'item', expected 'other'"),
        (
            lambda: make_shard(optimizer="sgd", optimizer_params={}),
            "table 1 optimizer is 'adagrad', expected 'sgd'",
        ),
        (
            lambda: _native.SparseShard([ref.table("user", 3)], partitions=4, seed=0),
            "table count is 2, expected 1",
        ),
    ],
)
def test_a_block_of_another_job_is_refused_saying_what_differs(target, message):
    shard = target()
    with pytest.raises(ValueError, match=message):
        shard.load_partition(BLOCK)
    assert shard.rows().sum() == 0


def test_keys_in_the_wrong_place_are_refused():
    first = len(BLOCK) - 4 - block_bytes()
    second = first + 8
    swapped = bytearray(BLOCK[:-4])
    swapped[first : second + 8] = BLOCK[second : second + 8] + BLOCK[first:second]
    with pytest.raises(ValueError, match="out of order"):
        make_shard().load_partition(sealed(swapped))
    moved = bytearray(BLOCK[:-4])
    moved[12:16] = (3).to_bytes(4, "little")
    with pytest.raises(ValueError, match="belongs to partition 2, not 3"):
        make_shard().load_partition(sealed(moved))


def block_bytes():
    """Bytes of keys and rows in BLOCK."""
    shard = make_shard()
    shard.load_partition(BLOCK)
    users, items = shard.rows().tolist()
    return users * (8 + 4 * (3 + 7)) + items * (8 + 4 * (2 + 2))


def test_a_dense_block_survives_its_own_bytes():
    copy = _native.DenseBlock.load(DENSE_BLOCK)
    assert copy.step == 1
    assert copy.optimizer == "adam"
    assert copy.optimizer_params == {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-7}
    original = _native.DenseBlock.load(DENSE_BLOCK)
    for block in (copy, original):
        block.apply(np.arange(5, dtype=np.float32))
    assert copy.dump() == original.dump() != DENSE_BLOCK


def test_blocks_of_different_steps_go_on_from_the_highest():
    """A step whose only rows came from a trainer that died may have reached some blocks only."""
    ahead = _native.DenseBlock.load(DENSE_BLOCK)
    ahead.apply(np.ones(5, np.float32))
    params = {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-7}
    for blocks in ([ahead.dump(), DENSE_BLOCK], [DENSE_BLOCK, ahead.dump()]):
        joined = _native.DenseBlock.join(
            blocks, offset=0, size=10, optimizer="adam", optimizer_params=params
        )
        assert joined.step == 2
        values = [_native.DenseBlock.load(block).values() for block in blocks]
        np.testing.assert_array_equal(joined.values(), np.concatenate(values))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(DENSE_BLOCK) - 1), st.integers(1, 255), st.booleans())
def test_a_damaged_dense_block_is_refused(at, flip, cut):
    damaged = bytearray(DENSE_BLOCK)
    if cut:
        del damaged[at:]
    else:
        damaged[at] ^= flip
    with pytest.raises(ValueError, match="dense block: "):
        _native.DenseBlock.load(damaged)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(DENSE_BLOCK) - 5), st.integers(0, 255), st.integers(1, 8))
def test_a_malicious_dense_block_never_does_harm(at, byte, width):
    body = bytearray(DENSE_BLOCK[:-4])
    body[at : at + width] = bytes([byte]) * len(body[at : at + width])
    try:
        block = _native.DenseBlock.load(sealed(body))
    except ValueError as error:
        assert type(error) is ValueError  # the message itself is sound text
        return
    block.apply(np.ones(len(block.values()), np.float32))


def test_crc32c_has_the_value_of_the_standard():
    assert _native.crc32c(b"123456789") == 0xE3069283
    assert _native.crc32c(b"") == 0
    assert _native.crc32c(np.zeros(32, np.uint8)) == 0x8A9136AA
