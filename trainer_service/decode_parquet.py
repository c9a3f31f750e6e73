"""Parquet: typed columns; row counts come from the footer, row groups nobody wants are not read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from services.kit.errors import InvalidInput
from trainer_service.decode import BadLine, File

_BLOCK_ROWS = 8192


def _footer(stream: Any) -> Any:
    return pyarrow.parquet.ParquetFile(stream, page_checksum_verification=True)


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
            first = 0
            for group in range(parquet.num_row_groups):
                rows = parquet.metadata.row_group(group).num_rows
                if first + rows <= start:
                    yield rows, None
                else:
                    # No threads: one reads several times faster than any trainer trains, and
                    # more of them wait for each other and take the step's cores from it.
                    for batch in parquet.iter_batches(
                        _BLOCK_ROWS, row_groups=[group], columns=columns, use_threads=False
                    ):
                        yield batch.num_rows, batch
                first += rows
