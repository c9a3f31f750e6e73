"""One Arrow column as texts, numbers or keys: one value gives one result, whatever type holds it.

Texts are the common form. An integer's text is its decimal digits and a float's is the shortest
decimal that reads back as the same value, without a point for whole numbers; so 3 in CSV, 3 in JSON
and 3.0 in a Parquet file that had to make a nullable column float are one value. An empty text,
null and NaN are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from services.kit.errors import InvalidInput
from trainer_service import _native

Mask = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.uint64]

_MALFORMED = 2  # code of _native.parse_*
_EMPTY = np.zeros(0, np.uint8)
_WHOLE, _FLOAT = (pa.int64(), pa.uint64()), pa.float32()
_OFFSETS = {
    pa.string().id: np.int32,
    pa.binary().id: np.int32,
    pa.large_string().id: np.int64,
    pa.large_binary().id: np.int64,
}


@dataclass(frozen=True)
class Text:
    """n byte strings: text i is data[offsets[i]:offsets[i + 1]]; an empty one is missing."""

    offsets: npt.NDArray[np.int32] | npt.NDArray[np.int64]  # (n + 1,)
    data: npt.NDArray[np.uint8]

    @property
    def missing(self) -> Mask:
        """(n,) which texts are empty."""
        return np.asarray(self.offsets[1:] == self.offsets[:-1])

    def hashes(self) -> Keys:
        """(n,) XXH64 of each text; a missing one has that of the empty text."""
        return _native.hash_strings(self.offsets, self.data)


def is_list(column: pa.Array) -> bool:
    """Whether each row holds a list of values."""
    return bool(pa.types.is_list(column.type) or pa.types.is_large_list(column.type))


def texts(column: pa.Array) -> Text:
    """Texts of strings, bytes, numbers, booleans, dates, nulls; InvalidInput for nested types."""
    kind = column.type
    offset = _OFFSETS.get(kind.id)
    if offset is not None:
        return _buffers(column, offset)
    if pa.types.is_null(kind):
        return Text(np.zeros(len(column) + 1, np.int32), _EMPTY)
    if pa.types.is_dictionary(kind):
        return texts(column.dictionary_decode())
    if pa.types.is_floating(kind):
        wide = column.cast(pa.float32()) if pa.types.is_float16(kind) else column
        return Text(*_native.float_text(np.ascontiguousarray(wide.to_numpy(zero_copy_only=False))))
    try:
        return _buffers(column.cast(pa.string()), np.int32)
    except pa.ArrowException:
        raise InvalidInput(f"values of type {kind} are not supported") from None


def numbers(column: pa.Array) -> tuple[npt.NDArray[np.float64], Mask | None]:
    """(n,) values, NaN where missing, and which are no finite number (None: all are well)."""
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return _parsed(column)
    if column.null_count or pa.types.is_decimal(kind):
        column = pc.cast(column, pa.float64(), safe=False)
    values = np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
    infinite = np.isinf(values)
    return values, infinite if infinite.any() else None


def decimals(column: pa.Array) -> tuple[npt.NDArray[np.float64], Mask | None]:
    """As `numbers`, but a float32 counts as its text says: 0.7 and not 0.699999988.

    So a boundary means the same for every type of column.
    """
    short = pa.types.is_float32(column.type) or pa.types.is_float16(column.type)
    return _parsed(column) if short else numbers(column)


def ids(column: pa.Array) -> tuple[Keys, Mask | None, Mask | None]:
    """(n,) 64-bit keys of integers or their decimal texts; which are missing, which malformed.

    None stands for "none is".
    """
    kind = column.type
    if pa.types.is_integer(kind):
        missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        filled = column.fill_null(0) if column.null_count else column
        whole = kind.bit_width == 64  # a cast that changes nothing costs microseconds all the same
        wide = filled if whole else filled.cast(pa.int64())
        return wide.to_numpy().view(np.uint64), missing, None
    text = texts(column)
    keys, codes = _native.parse_ints(text.offsets, text.data)
    if not codes.any():
        return keys, None, None
    return keys, codes == 1, codes == _MALFORMED


def joined_ids(columns: Sequence[pa.Array]) -> Keys | None:
    """The `ids` of all columns (columns * n,), one column after another, if they are of one type of
    64 bits and none is missing; None if `ids` has to look at each.

    One call of Arrow instead of several for each column, which cost as much as the copy.
    """
    kind = columns[0].type if columns else None
    if kind not in _WHOLE or any(c.type != kind or c.null_count for c in columns):
        return None
    return np.asarray(pa.concat_arrays(columns).to_numpy()).view(np.uint64)


def joined_floats(columns: Sequence[pa.Array]) -> npt.NDArray[np.float32] | None:
    """The `numbers` of all columns (columns, n), if they are float32 and all are finite; None if
    `numbers` has to look at each.
    """
    if not columns or any(c.type != _FLOAT or c.null_count for c in columns):
        return None
    values: npt.NDArray[np.float32] = pa.concat_arrays(columns).to_numpy()
    return values.reshape(len(columns), -1) if np.isfinite(values).all() else None


def lists(column: pa.Array) -> tuple[npt.NDArray[np.int32], pa.Array]:
    """(n + 1,) row offsets and the values they cut; a null list is an empty one."""
    counts = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    return offsets_of(counts), column.flatten()


def offsets_of(counts: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
    """(n + 1,) running sum from 0."""
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _parsed(column: pa.Array) -> tuple[npt.NDArray[np.float64], Mask | None]:
    text = texts(column)
    values, codes = _native.parse_floats(text.offsets, text.data)
    malformed = codes == _MALFORMED
    return values, malformed if malformed.any() else None


def _buffers(column: pa.Array, offset: Any) -> Text:
    if column.null_count:
        column = pc.fill_null(
            column, b"" if column.type in (pa.binary(), pa.large_binary()) else ""
        )
    _, offsets, data = column.buffers()
    first = column.offset
    if offsets is None or len(column) == 0:
        return Text(np.zeros(len(column) + 1, np.int32), _EMPTY)
    window = np.frombuffer(offsets, offset)[first : first + len(column) + 1]
    return Text(window, np.frombuffer(data, np.uint8) if data is not None else _EMPTY)
