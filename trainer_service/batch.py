"""Batch: what one training step is made of. Knows neither their origin nor the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ps_service.ranges import BatchRange, Place, place_of
from services.api.manifest import PositionEntry


@dataclass(frozen=True, eq=False)
class Batch:
    """A contiguous range of one source partition, as arrays; n = samples, D dense and F sparse
    features.

    Sparse features are CSR, feature-major: the keys of feature f in sample i are
    ``keys[offsets[f * n + i]:offsets[f * n + i + 1]]``; a sample may have none.
    """

    labels: npt.NDArray[np.float32]  # (n,) each 0 or 1
    dense: npt.NDArray[np.float32]  # (n, D), finite
    keys: npt.NDArray[np.uint64]  # (K,)
    offsets: npt.NDArray[np.int32]  # (F * n + 1,), from 0 to K
    first: Place  # where the source partition's last batch ended; malformed rows may lie between
    next: PositionEntry  # where this source partition goes on after the batch
    probabilities: npt.NDArray[np.float32] | None = (
        None  # (n,) true click probability, synthetic sources only
    )

    @property
    def rows(self) -> BatchRange:
        """Which rows these are; servers apply each range once."""
        return BatchRange(self.next.partition, self.first, place_of(self.next))

    @property
    def samples(self) -> int:
        """Rows of the batch."""
        return len(self.labels)
