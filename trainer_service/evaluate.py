"""How good the predictions are: AUC, log loss and calibration, over a sliding window while training
and exactly at the end.

Labels are 0 or 1 (float32), probabilities in [0, 1]. Where there is nothing to say (no row, one
class only) the answer is None, never NaN. Knows nothing of models or servers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_EPSILON = 1e-7  # probabilities are kept this far from 0 and 1 in log losses


def exact_auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float | None:
    """Area under the ROC curve: the chance that a random positive scores above a random negative,
    ties counting half.

    Mann-Whitney's U by average ranks, O(n log n); None without both classes.
    """
    positive = np.asarray(labels) > 0.5
    ordered = np.asarray(scores, np.float64)
    order = np.argsort(ordered, kind="stable")
    ordered = ordered[order]
    below, upto = (
        np.searchsorted(ordered, ordered, "left"),
        np.searchsorted(ordered, ordered, "right"),
    )
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if positives == 0 or negatives == 0:
        return None
    rank_sum = ((below + upto + 1) / 2.0)[
        positive[order]
    ].sum()  # a tie shares the mean of its ranks
    return float((rank_sum - positives * (positives + 1) / 2.0) / (positives * negatives))


def log_losses(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Cross entropy of each sample (n,)."""
    y = np.asarray(labels, np.float64)
    p = np.clip(np.asarray(probabilities, np.float64), _EPSILON, 1 - _EPSILON)
    losses: npt.NDArray[np.float64] = -(y * np.log(p) + (1 - y) * np.log1p(-p))
    return losses


@dataclass(frozen=True)
class Window:
    """What the recent predictions were worth."""

    samples: int
    auc: float | None
    auc_error: float | None  # bound of |auc - exact AUC of the same window|
    loss: float | None  # mean log loss
    copc: float | None  # clicks over predicted clicks: 1 is calibrated, below 1 predicts too much


class _Chunk:
    """Counts of one piece of the stream."""

    def __init__(self, bins: int) -> None:
        self.counts = np.zeros((2, bins), np.int64)  # [label, bin]
        self.samples, self.loss, self.clicks, self.predicted = 0, 0.0, 0.0, 0.0


class Progressive:
    """Progressive validation: every sample is predicted before it is trained on, so the window is
    an honest test set.

    Memory is O(chunks · bins), whatever the stream's length. Predictions are binned evenly by
    logit, which resolves the low probabilities of click data. Two samples in one bin count as a
    tie, so the AUC is off by at most half the share of (positive, negative) pairs that fall into
    one bin; the window states that bound (about 1e-3 with 2048 bins).
    """

    def __init__(
        self, *, window: int = 100_000, chunks: int = 10, bins: int = 2_048, span: float = 12.0
    ) -> None:
        """Covers the last `window` samples, forgetting a chunk of window/chunks at a time; logits
        beyond ±span share the outermost bins.
        """
        self._per_chunk, self._bins, self._span = max(1, window // chunks), bins, span
        self._chunks: deque[_Chunk] = deque([_Chunk(bins)], maxlen=chunks)

    def add(self, labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> None:
        """Adds n predictions made before training on them."""
        y = np.asarray(labels) > 0.5
        p = np.clip(np.asarray(probabilities, np.float64), _EPSILON, 1 - _EPSILON)
        if self._chunks[-1].samples >= self._per_chunk:
            self._chunks.append(_Chunk(self._bins))
        chunk = self._chunks[-1]
        scaled = (np.log(p) - np.log1p(-p) + self._span) * (self._bins / (2 * self._span))
        with np.errstate(invalid="ignore"):  # a prediction that is NaN makes the loss NaN, below
            bins = np.clip(scaled.astype(np.int64), 0, self._bins - 1)
        chunk.counts += np.bincount(y * self._bins + bins, minlength=2 * self._bins).reshape(2, -1)
        chunk.samples += len(y)
        chunk.loss += float(log_losses(y, p).sum())
        chunk.clicks += float(y.sum())
        chunk.predicted += float(p.sum())

    def window(self) -> Window:
        """The present window."""
        samples = sum(c.samples for c in self._chunks)
        if samples == 0:
            return Window(0, None, None, None, None)
        negatives, positives = sum(
            (c.counts for c in self._chunks), np.zeros((2, self._bins), np.int64)
        )
        pairs = float(positives.sum()) * float(negatives.sum())
        auc = error = None
        if pairs:
            ties = float(positives @ negatives) / 2
            wins = float(positives @ (np.cumsum(negatives) - negatives))
            auc, error = (wins + ties) / pairs, ties / pairs
        clicks, predicted = (
            sum(c.clicks for c in self._chunks),
            sum(c.predicted for c in self._chunks),
        )
        return Window(
            samples, auc, error, sum(c.loss for c in self._chunks) / samples, clicks / predicted
        )


@dataclass(frozen=True)
class Evaluation:
    """The result on held-out rows; `bayes_auc` is what the true probabilities reach, where the
    source knows them.
    """

    samples: int
    auc: float | None
    logloss: float | None
    copc: float | None
    bayes_auc: float | None

    def as_dict(self) -> dict[str, Any]:
        """For the member's status."""
        return asdict(self)


class Holdout:
    """Collects predictions and judges them exactly; holds 12 bytes per row."""

    def __init__(self) -> None:
        self._labels: list[npt.NDArray[np.float32]] = []
        self._predicted: list[npt.NDArray[np.float32]] = []
        self._true: list[npt.NDArray[np.float32]] = []

    def add(
        self,
        labels: npt.NDArray[np.float32],
        predicted: npt.NDArray[np.float32],
        true: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Adds n rows; `true` are their true click probabilities, for all rows or for none."""
        self._labels.append(labels)
        self._predicted.append(predicted)
        if true is not None:
            self._true.append(true)

    def result(self) -> Evaluation:
        """The evaluation of all rows added."""
        if not self._labels or not any(len(y) for y in self._labels):
            return Evaluation(0, None, None, None, None)
        labels, predicted = np.concatenate(self._labels), np.concatenate(self._predicted)
        return Evaluation(
            samples=len(labels),
            auc=exact_auc(labels, predicted),
            logloss=float(log_losses(labels, predicted).mean()),
            copc=float(labels.sum(dtype=np.float64))
            / max(float(predicted.sum(dtype=np.float64)), _EPSILON),
            bayes_auc=exact_auc(labels, np.concatenate(self._true)) if self._true else None,
        )
