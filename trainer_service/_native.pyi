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
    """XXH64 (seed 0) of the little-endian bytes of columns[0][i], columns[1][i], …, (n,)."""

def parse_floats(
    offsets: _Offsets, data: _Bytes
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.uint8]]:
    """Values (n,), NaN where there is none, and codes (n,).

    0 = value, 1 = missing (empty or nan), 2 = malformed.
    """

def parse_ints(
    offsets: _Offsets, data: _Bytes
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
    """64 bits of decimal integers in [-2^63, 2^64), 0 where there is none, and the same codes."""

def split(
    offsets: _Offsets, data: _Bytes, separator: bytes
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], _Bytes]:
    """Cuts texts into m tokens, empty ones dropped.

    Returns row offsets (n + 1,) into the tokens, token offsets (m + 1,) and their bytes.
    """

def float_text(
    values: npt.NDArray[np.float32] | npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.int32], _Bytes]:
    """Shortest decimals: Python's repr without a trailing ".0", NaN empty; offsets and bytes."""

class JsonRowReader:
    """Flat JSON objects to text columns; for threads together."""

    def __init__(self, columns: Sequence[str]) -> None: ...
    def pack(self, message: bytes) -> bytes | None:
        """The texts of the columns in one piece; None for a message that needs a complete parser:
        lists, nested objects, numbers beyond float64, a missing column, anything that is no JSON.
        """

    def unpack(
        self, rows: Sequence[bytes]
    ) -> list[tuple[npt.NDArray[np.uint8] | None, npt.NDArray[np.int32], _Bytes]]:
        """Of each column: Arrow's validity bitmap (None: no null), offsets (n + 1,) and bytes.

        ValueError for rows that `pack` did not make, or a column of 2 GiB or more.
        """
