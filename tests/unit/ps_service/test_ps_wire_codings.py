"""Values and keys in the codings of the wire, against NumPy's float16 and plain integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ps_service import _native, codec
from services.kit.errors import InvalidInput
from services.wire import ps_pb2

FP16, SCALED = ps_pb2.VALUE_CODING_FP16, ps_pb2.VALUE_CODING_SCALED_FP16
LARGEST, KAPPA, BLOCK = 65504.0, np.float32(2**15), 64
FLOATS = arrays(np.float32, st.integers(0, 200), elements=st.floats(width=32, allow_subnormal=True))
FINITE = arrays(
    np.float32,
    st.integers(0, 200),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


def test_the_names_are_those_of_the_native_codec() -> None:
    names = ["fp32", "fp16", "scaled-fp16"]
    assert list(_native.VALUE_CODINGS) == names
    assert [codec.value_coding(n) for n in names] == sorted(ps_pb2.ValueCoding.values())
    with pytest.raises(InvalidInput, match="'fp8' is not one of fp32, fp16, scaled-fp16"):
        codec.value_coding("fp8")


@given(FLOATS)
def test_fp16_is_that_of_numpy_with_large_values_clipped(values: np.ndarray) -> None:
    packed = codec.pack_values(values, FP16)
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    overflows = np.isinf(halves) & np.isfinite(values)
    halves[overflows] = np.copysign(np.float16(LARGEST), values[overflows])
    got = codec.unpack_values(packed.data, FP16, "values", len(values))
    np.testing.assert_array_equal(got, halves.astype(np.float32))  # bit for bit, but for NaN
    numbers = ~np.isnan(values)
    assert np.array_equal(np.signbit(got[numbers]), np.signbit(values[numbers]))
    assert packed.clipped == np.count_nonzero(overflows)
    assert packed.flushed == np.count_nonzero((halves == 0) & (values != 0))


@given(FINITE)
def test_scaled_fp16_is_numpys_of_the_scaled_block(values: np.ndarray) -> None:
    """The rule in NumPy's float32, bit for bit; then what it promises, in float64."""
    packed = codec.pack_values(values, SCALED)
    got = codec.unpack_values(packed.data, SCALED, "values", len(values))
    assert len(packed.data) == 2 * len(values) + 4 * -(-len(values) // BLOCK)
    flushed = 0
    for start in range(0, len(values), BLOCK):
        block, seen = values[start : start + BLOCK], got[start : start + BLOCK]
        norm = np.abs(block).max() or np.float32(1)
        halves = (block / norm * KAPPA).astype(np.float16)
        np.testing.assert_array_equal(seen, halves.astype(np.float32) / KAPPA * norm)
        # Each value keeps 11 bits, unless it is 2^29 times smaller than the largest.
        wide = block.astype(np.float64)
        bound = np.maximum(np.abs(wide) * 2.0**-11, float(norm) * 2.0**-40) * (1 + 2**-10)
        assert (np.abs(seen - wide) <= bound + 2.0**-149).all()
        flushed += np.count_nonzero((halves == 0) & (block != 0))
    assert (packed.clipped, packed.flushed) == (0, flushed)


@pytest.mark.parametrize("coding", [FP16, SCALED])
def test_infinity_and_nan_arrive(coding: ps_pb2.ValueCoding) -> None:
    values = np.array([1, np.inf, -np.inf, np.nan] * 20, np.float32)
    packed = codec.pack_values(values, coding)
    got = codec.unpack_values(packed.data, coding, "values", len(values))
    np.testing.assert_array_equal(got, values)
    assert (packed.clipped, packed.flushed) == (0, 0)


def test_small_gradients_need_the_scaled_coding() -> None:
    grads = np.random.default_rng(1).normal(0, 1e-7, 4096).astype(np.float32)
    errors = {}
    for coding in (FP16, SCALED):
        packed = codec.pack_values(grads, coding)
        got = codec.unpack_values(packed.data, coding, "grads", len(grads))
        errors[coding] = np.linalg.norm(got - grads) / np.linalg.norm(grads)
        if coding == FP16:
            assert packed.flushed > 500
    assert errors[FP16] > 0.1
    assert errors[SCALED] < 0.0005


@pytest.mark.parametrize(
    ("data", "coding", "message"),
    [
        (bytes(5), FP16, r"grads has 5 bytes, expected 6 \(3 x fp16\)"),
        (bytes(6), SCALED, r"grads has 6 bytes, expected 10 \(3 x scaled-fp16\)"),
        (bytes(10), SCALED, r"grads block 0 has norm 0.0*, must be above 0 and finite"),
        (bytes(12), 7, "grads: 7 is not a coding of values"),
    ],
)
def test_bad_values_are_refused_by_field(data, coding, message) -> None:
    with pytest.raises(InvalidInput, match=message):
        codec.unpack_values(data, coding, "grads", 3)


KEYS = st.lists(
    st.lists(
        st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 1000), st.integers(2**63, 2**63 + 99)),
        max_size=20,
        unique=True,
    ),
    min_size=1,
    max_size=4,
)


@given(KEYS)
def test_keys_round_trip_in_order_and_never_larger_than_plain(tables: list[list[int]]) -> None:
    counts = np.array([len(t) for t in tables], np.uint32)
    keys = np.array([k for t in tables for k in t], np.uint64)
    data, coding = codec.pack_table_keys(counts, keys)
    assert len(data) <= keys.nbytes
    np.testing.assert_array_equal(codec.unpack_table_keys(data, coding, "keys", counts), keys)
    delta = _native.encode_keys(counts, keys)
    sizes = [9 + len(t) * -(-(max(t) - min(t)).bit_length() // 8) for t in tables if t]
    assert len(delta) == sum(sizes)
    np.testing.assert_array_equal(_native.decode_keys(counts, delta), keys)


def test_small_ids_take_three_bytes_instead_of_eight() -> None:
    keys = np.random.default_rng(2).choice(2_000_000, 1000, replace=False).astype(np.uint64)
    data, coding = codec.pack_table_keys(np.array([1000], np.uint32), keys)
    assert (len(data), coding) == (9 + 3000, ps_pb2.KEY_CODING_DELTA)


@pytest.mark.parametrize(
    ("data", "coding", "message"),
    [
        (b"", ps_pb2.KEY_CODING_DELTA, "keys has 0 bytes, which can't hold 3 keys"),
        (bytes(9), ps_pb2.KEY_CODING_DELTA, "keys table 1: 0 bytes a key, must be 1 to 8"),
        (b"\x09" + bytes(40), ps_pb2.KEY_CODING_DELTA, "keys table 1: 9 bytes a key"),
        (b"\x02" + bytes(11), ps_pb2.KEY_CODING_DELTA, "keys table 1: has 3 bytes of keys, exp"),
        (b"\x01" + bytes(12), ps_pb2.KEY_CODING_DELTA, "keys has 1 bytes too many"),
        (bytes(24), 5, "keys: 5 is not a coding of keys"),
        (bytes(23), ps_pb2.KEY_CODING_PLAIN, r"keys has 23 bytes, expected 24 \(3 x uint64\)"),
    ],
)
def test_bad_keys_are_refused_by_field_and_table(data, coding, message) -> None:
    with pytest.raises(InvalidInput, match=message):
        codec.unpack_table_keys(data, coding, "keys", np.array([0, 3], np.uint32))


def test_a_lie_about_counts_asks_for_no_memory() -> None:
    counts = np.full(100, 2**32 - 1, np.uint32)
    with pytest.raises(InvalidInput, match="can't hold 429496729500 keys"):
        codec.unpack_table_keys(bytes(9), ps_pb2.KEY_CODING_DELTA, "keys", counts)
