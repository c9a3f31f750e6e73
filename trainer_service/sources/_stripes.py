"""StripeSource: batches of numbered rows that can be read again (files, synthetic)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps_service.ranges import place_of
from services.api.manifest import PositionEntry
from trainer_service.batch import Batch
from trainer_service.sources import EndOfData
from trainer_service.sources._bad_rows import BadRows
from trainer_service.sources._lanes import Lanes
from trainer_service.transform import Transform


@dataclass(frozen=True, eq=False)
class Stripe:
    """Consecutive rows; `index` counts stripes from the start of the data."""

    index: int
    first_row: int
    rows: pa.RecordBatch
    probabilities: npt.NDArray[np.float32] | None = None


class Stripes(Protocol):
    """Rows cut into stripes."""

    @property
    def name(self) -> str:
        """What messages call the data."""

    @property
    def rows(self) -> int | None:
        """Rows of one epoch, once known."""

    @property
    def count(self) -> int | None:
        """Stripes of one epoch, once known."""

    def read(
        self, first: int, wanted: Callable[[int], bool], bad_rows: BadRows | None
    ) -> Iterator[Stripe]:
        """The wanted stripes from number `first` on, in order; malformed lines on the way go to
        `bad_rows`.
        """


class StripeSource:
    """The stripes of one trainer's lanes, epoch after epoch; see `Source`."""

    def __init__(
        self, stripes: Stripes, transform: Transform, lanes: Lanes, epochs: int, bad_rows: BadRows
    ) -> None:
        self._stripes = stripes
        self._transform = transform
        self._lanes = lanes
        self._epochs = epochs
        self._bad = bad_rows
        self._failure: Exception | None = None
        self._handed = dict(lanes.starts)  # lane -> where its last batch ended
        if stripes.count is not None:
            lanes.learn(stripes.count)
        self._walk = self._batches()

    @property
    def bad_rows(self) -> int:
        """Rows skipped by this trainer."""
        return self._bad.own

    @property
    def total_samples(self) -> int | None:
        """Rows of all epochs, bad ones included; None until a whole pass counted them."""
        return None if self._stripes.rows is None else self._stripes.rows * self._epochs

    def next_batch(self, timeout: float) -> Batch | None:  # noqa: ARG002 - rows are always there
        """The next stripe with a good row; see `Source`."""
        if self._failure is not None:  # a generator that raised would look like one that ended
            raise self._failure
        try:
            return next(self._walk)
        except StopIteration:
            raise EndOfData from None
        except Exception as error:
            self._failure = error
            raise

    def positions(self) -> list[PositionEntry]:
        """See `Source`."""
        return self._lanes.positions()

    def lag(self) -> int | None:
        """Files and synthetic data have none."""
        return None

    def close(self) -> None:
        """See `Source`."""
        self._walk.close()

    def _batches(self) -> Generator[Batch, None, None]:
        counted: BadRows | None = self._bad  # later passes meet the same bad rows again
        for epoch in range(self._epochs):
            first = self._lanes.first(epoch)
            if first is None:
                continue
            yield from self._epoch(epoch, first, counted)
            if self._stripes.count is not None:
                self._lanes.learn(self._stripes.count)
            counted = None

    def _epoch(self, epoch: int, first: int, counted: BadRows | None) -> Iterator[Batch]:
        def wanted(stripe: int) -> bool:
            return self._lanes.wants(epoch, stripe)

        for stripe in self._stripes.read(first, wanted, counted):
            batch = self._batch(epoch, stripe, counted)
            self._bad.check()
            if batch.samples:
                self._handed[batch.next.partition] = batch.next
                yield batch
        self._bad.check()

    def _batch(self, epoch: int, stripe: Stripe, counted: BadRows | None) -> Batch:
        rows = self._transform.apply(stripe.rows)
        bad = len(rows.good) - int(rows.good.sum())
        if bad and counted is not None:
            for index, reason in rows.reasons:
                counted.add(f"row {stripe.first_row + index} of {self._stripes.name}", reason)
            counted.add_silent(bad - len(rows.reasons))
        probabilities = stripe.probabilities
        if probabilities is not None and bad:
            probabilities = probabilities[rows.good]
        position = self._lanes.take(epoch, stripe.index)
        first = place_of(self._handed[position.partition])
        return Batch(
            rows.labels, rows.dense, rows.keys, rows.offsets, first, position, probabilities
        )
