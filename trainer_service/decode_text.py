"""Delimited text: csv (header, RFC 4180 quoting), tsv (header, no quotes), criteo-tsv (no quotes).

The header of criteo-tsv is optional; with one, more columns are allowed. Values stay bytes, so text
in any encoding gives keys and nothing is guessed about types; an empty field is missing. A line
with too few or too many fields is reported and skipped.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.csv

from services.kit.errors import InvalidInput
from trainer_service.decode import BadLine, File

CRITEO_COLUMNS = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))
_BLOCK_BYTES = 1 << 20  # also the longest line
_FORMATS = {"csv": ",", "tsv": "\t", "criteo-tsv": "\t"}


@dataclass(frozen=True)
class _Header:
    names: list[str]
    lines: int  # 1 when the file has a header line, else 0
    empty: bool  # whether no line follows


class TextCodec:
    """One of the formats csv, tsv, criteo-tsv."""

    counts_cheaply = False

    def __init__(self, name: str) -> None:
        self._name = name
        self._delimiter = _FORMATS[name]

    def columns(self, file: File) -> list[str]:
        """Names in the header, or Criteo's."""
        return self._header(file).names

    def count(self, file: File) -> int:
        """Well-formed lines; reads the whole file."""
        first_column = self._header(file).names[:1]
        return sum(count for count, _ in self.blocks(file, first_column, 0, _ignore))

    def blocks(
        self,
        file: File,
        columns: Sequence[str] | None,
        start: int,  # noqa: ARG002 - text has to be read from its beginning
        on_bad: Callable[[BadLine], None],
    ) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        """Blocks of about 1 MiB of text. Raises InvalidInput for a missing column, Damaged for
        broken packing.
        """
        header = self._header(file)
        wanted = list(columns) if columns is not None else header.names
        for column in wanted:
            if header.names.count(column) != 1:
                times = "twice or more" if column in header.names else "not"
                there = ", ".join(header.names)
                raise InvalidInput(
                    f"{file.name}: column {column!r} is there {times}; the header has: {there}"
                )
        if header.empty:
            return

        def skip(row: Any) -> str:
            reason = f"{row.actual_columns} fields instead of {row.expected_columns}"
            on_bad(BadLine(file.name, reason, row.text))
            return "skip"

        with file.open() as stream, self._open(stream, header, wanted, skip) as reader:
            for batch in reader:
                yield batch.num_rows, batch

    def _open(
        self, stream: Any, header: _Header, wanted: list[str], skip: Callable[[Any], str]
    ) -> Any:
        quoted = self._name == "csv"
        return pyarrow.csv.open_csv(
            stream,
            read_options=pyarrow.csv.ReadOptions(
                column_names=header.names, skip_rows=header.lines, block_size=_BLOCK_BYTES
            ),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=self._delimiter,
                quote_char='"' if quoted else False,
                double_quote=quoted,
                newlines_in_values=quoted,
                invalid_row_handler=skip,
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                include_columns=wanted,
                column_types=dict.fromkeys(wanted, pa.binary()),
                strings_can_be_null=False,
            ),
        )

    def _header(self, file: File) -> _Header:
        with file.open() as stream:
            line = stream.readline(_BLOCK_BYTES)
            empty = not stream.read(1).strip()
        if not line.strip():
            raise InvalidInput(f"{file.name} is empty: its first line should name the columns")
        names = self._split(line.decode("utf-8-sig", "replace").rstrip("\r\n"))
        if self._name == "criteo-tsv" and "I1" not in names:
            return _Header(list(CRITEO_COLUMNS), 0, False)
        return _Header(names, 1, empty)

    def _split(self, line: str) -> list[str]:
        if self._name == "csv":
            return next(csv.reader([line], delimiter=self._delimiter))
        return line.split(self._delimiter)


def _ignore(line: BadLine) -> None:
    """Bad lines are reported by the pass that trains, not by the one that counts."""
