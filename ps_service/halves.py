"""Arrays in half the bytes: float16 with one exponent for the whole array, which lets the largest
value use float16's range.

A value of at least 2^-28 of the largest one keeps 11 bits: its relative error is at most 2^-11.
Below that the error is at most 2^-39 of the largest value. NaN and infinity pass, so that a model
that diverges shows.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ps_service import _native
from services.kit.errors import InvalidInput
from services.wire import ps_pb2

_HALF = np.dtype("<u2")  # bits of float16
_TOP_BITS = 15  # the largest value is scaled into [2^14, 2^15); float16 ends at 2^16
_MAX_EXPONENT = 126  # so that 2^exponent and its inverse are exact float32


def pack(values: NDArray[np.float32]) -> ps_pb2.Halves:
    """(n,) float32 values, rounded to the nearest."""
    peak = float(np.max(np.abs(values), initial=0.0))
    exponent = math.frexp(peak)[1] - _TOP_BITS if 0.0 < peak < math.inf else 0
    exponent = max(-_MAX_EXPONENT, min(_MAX_EXPONENT, exponent))
    halves = _native.to_fp16(values * np.float32(2.0**-exponent))
    return ps_pb2.Halves(values=halves.astype(_HALF, copy=False).tobytes(), exponent=exponent)


def unpack(message: ps_pb2.Halves, field: str, count: int) -> NDArray[np.float32]:
    """(count,) float32. Raises InvalidInput that names `field` for another length or an exponent
    out of bounds.
    """
    expected = count * _HALF.itemsize
    if len(message.values) != expected:
        raise InvalidInput(
            f"{field} has {len(message.values)} bytes, expected {expected} ({count} x float16)"
        )
    if abs(message.exponent) > _MAX_EXPONENT:
        raise InvalidInput(f"{field}: exponent {message.exponent} is not in ±{_MAX_EXPONENT}")
    values = _native.from_fp16(
        np.frombuffer(message.values, dtype=_HALF).astype(np.uint16, copy=False)
    )
    with np.errstate(over="ignore"):  # the float32 next to infinity may be rounded up to it
        values *= np.float32(2.0**message.exponent)
    return values
