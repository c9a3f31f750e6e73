"""Text columns to keys and numbers, in C++ (trainer_service/native).

A text column is Arrow's layout: text i is data[offsets[i]:offsets[i + 1]]. Wrong shapes, dtypes or
offsets raise ValueError or TypeError; the GIL is released around the work. Every function is pure.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_Offsets = npt.NDArray[np.int32] | npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]

def hash_strings(offsets: _Offsets, data: _Bytes, seed: int = 0) -> npt.NDArray[np.uint64]:
    """XXH64 of each text, (n,)."""

def hash_combine(columns: Sequence[npt.NDArray[np.uint64]]) -> npt.NDArray[np.uint64]:
    """XXH64 (seed 0) of the little-endian bytes of columns[0][i], columns[1][i], …, (n,); the order
    matters.
    """

def parse_floats(
    offsets: _Offsets, data: _Bytes
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.uint8]]:
    """Values (n,) and per text 0 = value, 1 = missing (empty or nan; the value is NaN), 2 =
    malformed (NaN).
    """

def parse_ints(
    offsets: _Offsets, data: _Bytes
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
    """64 bits of decimal integers in [-2^63, 2^64), (n,), and the same codes as parse_floats (the
    value is 0).
    """

def split(
    offsets: _Offsets, data: _Bytes, separator: bytes
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], _Bytes]:
    """Cuts texts into tokens, empty ones dropped: row offsets (n + 1,) into the tokens, token
    offsets (m + 1,), bytes.
    """

def float_text(
    values: npt.NDArray[np.float32] | npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.int32], _Bytes]:
    """Offsets (n + 1,) and bytes of the shortest decimals: Python's repr without a trailing ".0";
    NaN is empty.
    """
