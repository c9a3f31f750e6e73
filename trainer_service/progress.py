"""What a trainer says about itself: the status in its lease and its gauges, kept up to date by the
loop.

The loop's thread writes, the heartbeat's thread reads `status()`; what is read is replaced as a
whole.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer_service.evaluate import Evaluation, Progressive
from trainer_service.metrics import TrainerMetrics
from trainer_service.step import StepResult

_REFRESH_SECONDS = 0.5
_RATE_POINTS = 20  # samples/s is a mean over this many refreshes


class Progress:
    """Counts steps and samples, and judges the predictions of the recent window."""

    def __init__(
        self,
        metrics: TrainerMetrics,
        *,
        restored_samples: int = 0,
        staleness_bound: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`restored_samples` were trained by earlier generations; `staleness_bound` is the job's,
        in steps.
        """
        self._metrics, self._clock = metrics, clock
        self._restored, self._staleness_bound = restored_samples, staleness_bound
        metrics.staleness_bound.set(staleness_bound)
        metrics.stepping.set(1)
        self._progressive = Progressive()
        self._step = self._samples = self._staleness = 0
        self._start = self._refreshed = clock()
        self._waited = 0.0  # seconds
        # Time, samples and seconds waited so far.
        self._points = deque([(self._start, 0, 0.0)], maxlen=_RATE_POINTS)
        self._bad_rows = 0
        self._lag: int | None = None
        self._total: int | None = None
        self._status: dict[str, Any] = {}
        self._refresh()

    @property
    def step(self) -> int:
        """The last step taken; 0 before the first."""
        return self._step

    @property
    def samples(self) -> int:
        """Rows trained; those of earlier generations included where the caller gave them."""
        return self._restored + self._samples

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The trainer waits for data inside it."""
        start = self._clock()
        try:
            yield
        finally:
            self._waited += self._clock() - start

    def stepped(
        self, step: int, result: StepResult, labels: npt.NDArray[np.float32], *, staleness: int
    ) -> None:
        """Step `step` is applied; its n predictions were made before it, from rows read `staleness`
        steps ago.
        """
        self._step, self._staleness = step, staleness
        self._metrics.staleness.observe(staleness)
        self._metrics.stale_batches.inc(staleness > self._staleness_bound)
        self._samples += len(labels)
        self._metrics.steps.inc()
        if len(labels):
            self._metrics.samples.inc(len(labels))
            self._progressive.add(labels, result.probabilities)
        else:
            self._metrics.idle_steps.inc()
        if self._clock() - self._refreshed >= _REFRESH_SECONDS:
            self._refresh()

    def source(self, *, bad_rows: int, lag: int | None, total_samples: int | None) -> None:
        """The source's counters, seen at the next refresh; the reader's thread calls this."""
        self._metrics.bad_rows.inc(max(0, bad_rows - self._bad_rows))
        self._bad_rows, self._lag, self._total = bad_rows, lag, total_samples

    def finished(self) -> None:
        """No further step follows: samples/s becomes the mean over the whole run."""
        self._metrics.stepping.set(0)
        self._points = deque([(self._start, 0, 0.0)], maxlen=_RATE_POINTS)
        self._refresh()

    def evaluated(self, result: Evaluation) -> None:
        """The held-out rows are judged."""
        self._status = {**self._status, "result": result.as_dict()}

    def status(self) -> dict[str, Any]:
        """For the member's lease."""
        return self._status

    def _refresh(self) -> None:
        now = self._refreshed = self._clock()
        since, before, waited = self._points[0]
        self._points.append((now, self._samples, self._waited))
        seconds = now - since
        window = self._progressive.window()
        for gauge, value in (
            (self._metrics.loss, window.loss),
            (self._metrics.auc, window.auc),
            (self._metrics.copc, window.copc),
            (self._metrics.lag, self._lag),
        ):
            if value is not None:
                gauge.set(value)
        self._status = {
            "step": self._step,
            "samples": self.samples,
            "samples_per_second": (self._samples - before) / seconds if seconds > 0 else 0.0,
            "wait_share": (self._waited - waited) / seconds if seconds > 0 else 0.0,
            "loss": window.loss,
            "auc": window.auc,
            "copc": window.copc,
            "bad_rows": self._bad_rows,
            "lag": self._lag,
            "total_samples": self._total,
            "staleness": self._staleness,
        }
