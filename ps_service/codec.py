"""Arrays <-> bytes on the wire. The one place that knows byte order, dtype and coding; how a coding
works is in native/wire_codec.h.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ps_service import _native
from services.kit.errors import InvalidInput
from services.wire import ps_pb2

FLOAT = np.dtype("<f4")
KEY = np.dtype("<u8")

_VALUE_CODINGS = {
    "fp32": ps_pb2.VALUE_CODING_FP32,
    "fp16": ps_pb2.VALUE_CODING_FP16,
    "scaled-fp16": ps_pb2.VALUE_CODING_SCALED_FP16,
}
_NAMES = {coding: name for name, coding in _VALUE_CODINGS.items()}


class Packed(NamedTuple):
    """Encoded values, and what rounding did to finite ones."""

    data: bytes
    clipped: int = 0  # beyond the largest, and now that
    flushed: int = 0  # not zero, and now zero


class Laid(NamedTuple):
    """As Packed, beside a message instead of in it."""

    data: memoryview
    clipped: int = 0
    flushed: int = 0


def pack_floats(values: NDArray[np.float32]) -> bytes:
    """float32 of any shape, row-major. Raises TypeError for another dtype: nothing is rounded
    silently.
    """
    return _pack(values, FLOAT)


def view_floats(values: NDArray[np.float32]) -> memoryview:
    """The bytes of `pack_floats` where they lie, for contiguous `values`. Raises like it."""
    if values.dtype != FLOAT:
        raise TypeError(f"array is {values.dtype}, expected {FLOAT}")
    return values.data.cast("B")


def room(size: int) -> memoryview:
    """Memory for arrays of `size` bytes, whatever was in it before."""
    return np.empty(size, np.uint8).data


def pack_keys(keys: NDArray[np.uint64]) -> bytes:
    """uint64 keys. Raises TypeError for another dtype."""
    return _pack(keys, KEY)


def unpack_floats(data: bytes | memoryview, field: str, count: int) -> NDArray[np.float32]:
    """(count,) read-only view of `data`, or a copy of what is not aligned. Raises InvalidInput that
    names `field`, its length and the expected one.
    """
    return _unpack(data, field, count, FLOAT)


def unpack_keys(data: bytes, field: str, count: int) -> NDArray[np.uint64]:
    """(count,) read-only view of `data`. Raises InvalidInput like `unpack_floats`."""
    return _unpack(data, field, count, KEY)


def value_coding(name: str) -> ps_pb2.ValueCoding:
    """The wire's number of a coding: fp32, fp16, scaled-fp16. Raises InvalidInput for another."""
    if name not in _VALUE_CODINGS:
        raise InvalidInput(f"value coding {name!r} is not one of {', '.join(_VALUE_CODINGS)}")
    return _VALUE_CODINGS[name]


def value_bytes(coding: ps_pb2.ValueCoding, count: int, field: str) -> int:
    """Bytes of `count` encoded values. Raises InvalidInput that names `field` for a number that is
    no coding.
    """
    return _native.encoded_bytes(_name(coding, field), count)


def pack_values(values: NDArray[np.float32], coding: ps_pb2.ValueCoding) -> Packed:
    """Values (n,) in the given coding."""
    if coding == ps_pb2.VALUE_CODING_FP32:
        return Packed(pack_floats(values))
    return Packed(*_native.encode_values(values, _NAMES[coding]))


def view_values(values: NDArray[np.float32], coding: ps_pb2.ValueCoding) -> Laid:
    """As `pack_values`, without a copy of contiguous values that need no encoding."""
    if coding == ps_pb2.VALUE_CODING_FP32:
        return Laid(view_floats(values))
    packed = pack_values(values, coding)
    return Laid(memoryview(packed.data), packed.clipped, packed.flushed)


def unpack_values(
    data: bytes | memoryview, coding: ps_pb2.ValueCoding, field: str, count: int
) -> NDArray[np.float32]:
    """(count,) values; a view of `data`, read-only, where it is not encoded.

    Raises InvalidInput that names `field` for an unknown coding, a wrong length, or a block's norm
    that can't be one.
    """
    if coding == ps_pb2.VALUE_CODING_FP32:
        return unpack_floats(data, field, count)
    expected = value_bytes(coding, count, field)
    if len(data) != expected:  # before the memory is asked for
        raise InvalidInput(
            f"{field} has {len(data)} bytes, expected {expected} ({count} x {_NAMES[coding]})"
        )
    values = np.empty(count, dtype=np.float32)
    unpack_values_into(values, data, coding, field)
    return values


def unpack_values_into(
    values: NDArray[np.float32], data: bytes | memoryview, coding: ps_pb2.ValueCoding, field: str
) -> None:
    """As `unpack_values`, into an array (n,)."""
    try:
        _native.decode_values(data, _name(coding, field), values)
    except ValueError as error:
        raise InvalidInput(f"{field} {error}") from error


def pack_table_keys(
    counts: NDArray[np.uint32], keys: NDArray[np.uint64]
) -> tuple[bytes, ps_pb2.KeyCoding]:
    """Keys (n,) of all tables, counts[t] of table t, in the coding that is smaller for them."""
    data = _native.encode_keys(counts, keys)
    if len(data) < keys.nbytes:
        return data, ps_pb2.KEY_CODING_DELTA
    return pack_keys(keys), ps_pb2.KEY_CODING_PLAIN


def unpack_table_keys(
    data: bytes, coding: ps_pb2.KeyCoding, field: str, counts: NDArray[np.uint32]
) -> NDArray[np.uint64]:
    """The keys (n,) again. Raises InvalidInput that names `field` for an unknown coding and for
    bytes that are not so many keys.
    """
    if coding == ps_pb2.KEY_CODING_PLAIN:
        return unpack_keys(data, field, int(counts.sum(dtype=np.int64)))
    if coding != ps_pb2.KEY_CODING_DELTA:
        raise InvalidInput(f"{field}: {coding} is not a coding of keys")
    try:
        return _native.decode_keys(counts, data)
    except ValueError as error:
        raise InvalidInput(f"{field} {error}") from error


def _name(coding: ps_pb2.ValueCoding, field: str) -> str:
    name = _NAMES.get(coding)
    if name is None:
        raise InvalidInput(f"{field}: {coding} is not a coding of values")
    return name


def _pack(array: NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    if array.dtype != dtype:
        raise TypeError(f"array is {array.dtype}, expected {dtype}")
    return array.tobytes()


def _unpack(data: bytes | memoryview, field: str, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    expected = count * dtype.itemsize
    if len(data) != expected:
        raise InvalidInput(
            f"{field} has {len(data)} bytes, expected {expected} ({count} x {dtype.name})"
        )
    array = np.frombuffer(data, dtype=dtype)
    return array if array.flags.aligned else array.copy()  # what we write is aligned
