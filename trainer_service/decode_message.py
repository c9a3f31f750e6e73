"""Messages of a stream -> record batches: JSON (one row each) and Arrow IPC streams (many rows).

Knows bytes and columns, not Kafka. A message that can't be read raises `BadMessage`; the source
counts it. docs/formats.md, "Kafka messages", is the contract with whoever produces them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from services.kit.errors import InvalidInput
from trainer_service import _native

JsonValue = str | list[str | None] | None
JsonRow = bytes | list[JsonValue]  # packed natively, or a value for each column


class BadMessage(Exception):
    """Why a message has no rows."""


class Rows(Protocol):
    """Rows of one message."""

    def __len__(self) -> int: ...


class MessageDecoder(Protocol):
    """One message format."""

    rows_are_messages: bool  # whether each message is exactly one row

    def parse(self, value: bytes) -> Rows:
        """Rows of a message. Raises BadMessage; InvalidInput where a column is missing from a typed
        message.
        """

    def fits(self, left: Any, right: Any) -> bool:
        """Whether rows of two messages can be joined."""

    def join(self, pieces: Sequence[tuple[Any, int, int]]) -> pa.RecordBatch:
        """One batch of rows [start, stop) of each piece (rows, start, stop), in order."""


class JsonDecoder:
    """A JSON object per message; a value is text, number, boolean, null, or a list of these.

    Values become texts. A float literal gets the text of its value, as a float column's does; see
    `columns`. Flat objects take a native way; the json module reads what that leaves over, and says
    what is wrong with a message.
    """

    rows_are_messages = True

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self._native = _native.JsonRowReader(self._columns)
        self._decoder = json.JSONDecoder(
            parse_int=str, parse_float=_float_text, parse_constant=_constant
        )

    def parse(self, value: bytes) -> list[JsonRow]:
        """See `MessageDecoder`."""
        row = self._native.pack(value)
        return [self._values(value) if row is None else row]

    def fits(self, left: object, right: object) -> bool:  # noqa: ARG002 - texts always fit
        """See `MessageDecoder`."""
        return True

    def join(self, pieces: Sequence[tuple[list[JsonRow], int, int]]) -> pa.RecordBatch:
        """See `MessageDecoder`."""
        rows = [row for rows, start, stop in pieces for row in rows[start:stop]]
        packed = [row for row in rows if isinstance(row, bytes)]
        arrays = self._unpack(packed)
        if len(packed) < len(rows):
            texts = zip(*(array.to_pylist() for array in arrays), strict=True)
            whole = (row if isinstance(row, list) else next(texts) for row in rows)
            arrays = [_array(values) for values in zip(*whole, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=self._columns)

    def _values(self, value: bytes) -> list[JsonValue]:
        try:
            row = self._decoder.decode(value.decode())
        except (ValueError, RecursionError) as error:
            raise BadMessage(f"not JSON: {error}") from None
        if not isinstance(row, dict):
            raise BadMessage("not a JSON object")
        try:
            values = [row[column] for column in self._columns]
        except KeyError as error:
            raise BadMessage(f"column {error} is not there; it has: {', '.join(row)}") from None
        return [v if type(v) is str else _plain(v) for v in values]

    def _unpack(self, rows: list[bytes]) -> list[pa.Array]:
        return [
            pa.Array.from_buffers(
                pa.string(),
                len(rows),
                [
                    None if validity is None else pa.py_buffer(validity),
                    pa.py_buffer(offsets),
                    pa.py_buffer(data),
                ],
            )
            for validity, offsets, data in self._native.unpack(rows)
        ]


class ArrowDecoder:
    """An Arrow IPC stream per message."""

    rows_are_messages = False

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = list(columns)

    def parse(self, value: bytes) -> pa.RecordBatch:
        """See `MessageDecoder`."""
        try:
            with pa.ipc.open_stream(value) as reader:
                table = reader.read_all()
            table.validate(full=True)  # broken offsets would be read out of bounds later
        except (pa.ArrowException, OSError, EOFError) as error:
            raise BadMessage(f"not an Arrow IPC stream: {error}") from None
        names = table.column_names  # a new list at every look
        for column in self._columns:
            if names.count(column) != 1:
                raise InvalidInput(
                    f"column {column!r} is not there exactly once; the message has: "
                    f"{', '.join(names)}"
                )
        batches = table.select(self._columns).combine_chunks().to_batches()
        return (
            batches[0]
            if batches
            else pa.RecordBatch.from_pylist([], table.select(self._columns).schema)
        )

    def fits(self, left: pa.RecordBatch, right: pa.RecordBatch) -> bool:
        """See `MessageDecoder`."""
        return bool(left.schema.equals(right.schema))

    def join(self, pieces: Sequence[tuple[pa.RecordBatch, int, int]]) -> pa.RecordBatch:
        """See `MessageDecoder`."""
        slices = [rows.slice(start, stop - start) for rows, start, stop in pieces]
        return slices[0] if len(slices) == 1 else pa.concat_batches(slices)


def decoder(data_format: str, columns: Sequence[str]) -> MessageDecoder:
    """The decoder of a `data.format`."""
    return JsonDecoder(columns) if data_format == "json" else ArrowDecoder(columns)


def _float_text(literal: str) -> str:
    return repr(float(literal)).removesuffix(".0")


def _constant(name: str) -> str | None:
    return None if name == "NaN" else name  # the infinities are refused later, as in other formats


def _plain(value: Any) -> JsonValue:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        items = [_plain(item) for item in value]
        if not any(isinstance(item, list) for item in items):
            return items  # type: ignore[return-value]  # no item is a list
    raise BadMessage("a value is an object or a list of lists")


def _array(values: Sequence[JsonValue]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowException, UnicodeEncodeError):
        return _odd_array(values)


def _odd_array(values: Sequence[JsonValue]) -> pa.Array:
    """Lists, or texts with half of a surrogate pair, which JSON may escape and UTF-8 lacks."""
    if any(isinstance(value, list) for value in values):
        lists = [value if isinstance(value, list) else [value] for value in values]
        return pa.array(
            [[_bytes(item) for item in items] for items in lists], pa.list_(pa.binary())
        )
    return pa.array([_bytes(value) for value in values], pa.binary())


def _bytes(value: JsonValue) -> bytes | None:
    return None if value is None else str(value).encode("utf-8", "surrogatepass")
