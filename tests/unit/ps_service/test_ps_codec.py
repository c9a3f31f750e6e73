"""Arrays <-> bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_service import codec
from services.kit.errors import InvalidInput


@given(st.lists(st.integers(0, 2**64 - 1), max_size=50))
def test_keys_round_trip(keys: list[int]) -> None:
    array = np.array(keys, dtype=np.uint64)
    data = codec.pack_keys(array)
    assert data == b"".join(k.to_bytes(8, "little") for k in keys)
    np.testing.assert_array_equal(codec.unpack_keys(data, "keys", len(keys)), array)


def test_floats_keep_every_bit() -> None:
    bits = np.array([0, 0x80000000, 0x7F800000, 0x7FC00001, 1, 0x3F800000], dtype=np.uint32)
    data = codec.pack_floats(bits.view(np.float32))
    assert data == bits.astype("<u4").tobytes()
    assert codec.unpack_floats(data, "grads", 6).view(np.uint32).tolist() == bits.tolist()


def test_a_strided_array_is_packed_row_by_row() -> None:
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    assert codec.unpack_floats(codec.pack_floats(matrix), "x", 6).tolist() == [0, 2, 4, 6, 8, 10]


def test_unpacked_arrays_are_read_only_views() -> None:
    array = codec.unpack_floats(bytes(8), "grads", 2)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@pytest.mark.parametrize(
    ("unpack", "size", "count", "message"),
    [
        (codec.unpack_floats, 12, 4, r"grads has 12 bytes, expected 16 \(4 x float32\)"),
        (codec.unpack_floats, 13, 3, r"grads has 13 bytes, expected 12 \(3 x float32\)"),
        (codec.unpack_keys, 0, 1, r"grads has 0 bytes, expected 8 \(1 x uint64\)"),
    ],
)
def test_wrong_length_names_field_actual_and_expected(unpack, size, count, message) -> None:
    with pytest.raises(InvalidInput, match=message):
        unpack(bytes(size), "grads", count)


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.uint32])
def test_no_silent_conversion(dtype) -> None:
    with pytest.raises(TypeError, match="expected float32"):
        codec.pack_floats(np.zeros(2, dtype=dtype))
    with pytest.raises(TypeError, match="expected uint64"):
        codec.pack_keys(np.zeros(2, dtype=dtype))
