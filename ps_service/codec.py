"""Arrays <-> bytes on the wire: little-endian float32 and uint64. The one place that knows byte
order and dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.kit.errors import InvalidInput

FLOAT = np.dtype("<f4")
KEY = np.dtype("<u8")


def pack_floats(values: NDArray[np.float32]) -> bytes:
    """float32 of any shape, row-major. Raises TypeError for another dtype: nothing is rounded
    silently.
    """
    return _pack(values, FLOAT)


def pack_keys(keys: NDArray[np.uint64]) -> bytes:
    """uint64 keys. Raises TypeError for another dtype."""
    return _pack(keys, KEY)


def unpack_floats(data: bytes, field: str, count: int) -> NDArray[np.float32]:
    """(count,) read-only view of `data`. Raises InvalidInput that names `field`, its length and the
    expected one.
    """
    return _unpack(data, field, count, FLOAT)


def unpack_keys(data: bytes, field: str, count: int) -> NDArray[np.uint64]:
    """(count,) read-only view of `data`. Raises InvalidInput like `unpack_floats`."""
    return _unpack(data, field, count, KEY)


def _pack(array: NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    if array.dtype != dtype:
        raise TypeError(f"array is {array.dtype}, expected {dtype}")
    return array.tobytes()


def _unpack(data: bytes, field: str, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    expected = count * dtype.itemsize
    if len(data) != expected:
        raise InvalidInput(
            f"{field} has {len(data)} bytes, expected {expected} ({count} x {dtype.name})"
        )
    return np.frombuffer(data, dtype=dtype)
