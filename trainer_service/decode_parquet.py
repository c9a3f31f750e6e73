"""Parquet: typed columns; row counts come from the footer, row groups nobody wants are not read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from services.kit.errors import InvalidInput
from trainer_service.decode import BadLine, File

_BLOCK_ROWS = 8192
# Of row groups that are decoded together, if they are small: to begin costs as much as a thousand
# rows. What is read ahead for them is in memory at once.
_RUN_ROWS = 65536


def _footer(stream: Any) -> Any:
    # Arrow's threads read what is far away ahead of the decoder; for a local file they only cost.
    local = isinstance(stream, pa.OSFile)
    return pyarrow.parquet.ParquetFile(
        stream, pre_buffer=not local, page_checksum_verification=True
    )


def _runs(groups: Sequence[int], first: int) -> Iterator[list[int]]:
    """Numbers of the row groups from `first` on, as many together as give _RUN_ROWS rows, at least
    one; `groups` are their rows.
    """
    run: list[int] = []
    rows = 0
    for number in range(first, len(groups)):
        if run and rows + groups[number] > _RUN_ROWS:
            yield run
            run, rows = [], 0
        run.append(number)
        rows += groups[number]
    if run:
        yield run


class ParquetCodec:
    """The format parquet."""

    counts_cheaply = True

    def columns(self, file: File) -> list[str]:
        """Top-level columns."""
        with file.open(packed=False) as stream:
            return list(_footer(stream).schema_arrow.names)

    def count(self, file: File) -> int:
        """Rows, from the footer."""
        with file.open(packed=False) as stream:
            return int(_footer(stream).metadata.num_rows)

    def blocks(
        self,
        file: File,
        columns: Sequence[str] | None,
        start: int,
        on_bad: Callable[[BadLine], None],  # noqa: ARG002 - a Parquet file has no lines
    ) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        """Blocks of up to 8192 rows. Raises InvalidInput for a missing column, Damaged for broken
        bytes.
        """
        with file.open(packed=False) as stream:
            parquet = _footer(stream)
            names = parquet.schema_arrow.names
            for column in columns or ():
                if column not in names:
                    raise InvalidInput(
                        f"{file.name}: column {column!r} is not there; it has: {', '.join(names)}"
                    )
            groups = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
            passed = first = 0
            while passed < len(groups) and first + groups[passed] <= start:
                yield groups[passed], None
                first += groups[passed]
                passed += 1
            # No threads: one decodes several times faster than any trainer trains, and more of them
            # wait for each other and take the step's cores from it.
            for run in _runs(groups, passed):
                for batch in parquet.iter_batches(
                    _BLOCK_ROWS, row_groups=run, columns=columns, use_threads=False
                ):
                    yield batch.num_rows, batch
