"""file:// and s3://: rows of a file or of a glob's files, cut into stripes; see `decode`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from services.api.manifest import PositionEntry
from services.api.spec import JobSpec
from trainer_service.decode import BadLine, RowReader, open_rows
from trainer_service.sources import Claimer
from trainer_service.sources._bad_rows import BadRows
from trainer_service.sources._lanes import Lanes, lane_names
from trainer_service.sources._stripes import Stripe, StripeSource
from trainer_service.transform import Transform, check_columns


class FileStripes:
    """Stripes of `size` rows of the rows [first_row, end_row) of a reader; see `Stripes`."""

    def __init__(
        self, name: str, reader: RowReader, size: int, first_row: int, end_row: int | None
    ) -> None:
        self.name = name
        self._reader = reader
        self._size = size
        self._first = first_row
        self.rows: int | None = None if end_row is None else end_row - first_row

    @property
    def count(self) -> int | None:
        """See `Stripes`."""
        return None if self.rows is None else -(-self.rows // self._size)

    def read(
        self, first: int, wanted: Callable[[int], bool], bad_rows: BadRows | None
    ) -> Iterator[Stripe]:
        """See `Stripes`. Rows that nobody wants are passed over without a copy."""

        def report(line: BadLine) -> None:
            if bad_rows is not None:
                bad_rows.add_shared(line.file, line.reason, line.text)

        pieces: list[pa.RecordBatch] = []
        index = end = 0  # stripe being cut; our rows passed so far
        for block in self._reader.blocks(self._first + first * self._size, report):
            at = max(0, self._first - block.first)
            while at < block.count:
                row = block.first + at - self._first
                if row == self.rows:
                    return
                index = row // self._size
                end = row + min(block.count - at, self._end(index) - row)
                if block.rows is not None and index >= first and wanted(index):
                    pieces.append(block.rows.slice(at, end - row))
                if pieces and end == self._end(index):
                    yield self._stripe(index, pieces)
                    pieces = []
                at += end - row
        if pieces:
            yield self._stripe(index, pieces)
        self.rows = end

    def _end(self, index: int) -> int:
        end = (index + 1) * self._size
        return end if self.rows is None else min(end, self.rows)

    def _stripe(self, index: int, pieces: list[pa.RecordBatch]) -> Stripe:
        rows = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
        return Stripe(index, self._first + index * self._size, rows)


def open_training(
    spec: JobSpec,
    *,
    rank: int,
    trainers: int,
    resume: Mapping[str, PositionEntry],
    claim: Claimer,
) -> StripeSource:
    """See `sources.open_training`. With `holdout.last`, text files take one pass for counting."""
    url = spec.data.source
    reader = _reader(spec, url)
    end: int | None = None
    if spec.data.holdout is not None and spec.data.holdout.last is not None:
        end = training_rows(reader.count(), spec.data.holdout.last)
    elif reader.cheap:
        end = reader.count()
    stripes = FileStripes(url, reader, spec.training.batch_size, 0, end)
    lanes = Lanes(lane_names(), rank, trainers, spec.training.epochs, resume, claim)
    bad_rows = BadRows(spec.data.max_bad_rows, rank, trainers)
    return StripeSource(stripes, Transform(spec.features), lanes, spec.training.epochs, bad_rows)


def open_holdout(spec: JobSpec, url: str) -> StripeSource | None:
    """See `sources.open_holdout`."""
    holdout = spec.data.holdout
    if holdout is None:
        return None
    reader = _reader(spec, url)
    first, end = 0, None
    if holdout.last is not None:
        end = reader.count()
        first = training_rows(end, holdout.last)
    stripes = FileStripes(url, reader, spec.training.batch_size, first, end)
    lanes = Lanes(["holdout"], 0, 1, 1, {})
    return StripeSource(
        stripes, Transform(spec.features), lanes, 1, BadRows(spec.data.max_bad_rows)
    )


def training_rows(rows: int, last: float) -> int:
    """How many of `rows` are trained when the last share is held out: int((1 - last)·rows).

    Rounded first, so that the error of 1 - 0.9 doesn't cost a row.
    """
    return int(round((1 - last) * rows, 6))


def _reader(spec: JobSpec, url: str) -> RowReader:
    reader = open_rows(url, spec.data.format, spec.features.columns())
    check_columns(spec.features, reader.columns())
    return reader
