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
            groups = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
            passed = first = 0
            while passed < len(groups) and first + groups[passed] <= start:
                yield groups[passed], None
                first += groups[passed]
                passed += 1
            # All at once, since each beginning costs as much as a thousand rows. No threads: one
            # reads several times faster than any trainer trains, and more of them wait for each
            # other and take the step's cores from it.
            for batch in parquet.iter_batches(
                _BLOCK_ROWS,
                row_groups=list(range(passed, len(groups))),
                columns=columns,
                use_threads=False,
            ):
                yield batch.num_rows, batch
