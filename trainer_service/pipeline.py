"""What runs beside the step, without changing the loop's text: batches are read ahead, and the two
pushes overlap.

While batch i is trained, a thread reads, decodes and plans batches i+1, i+2, … into a bounded
queue; `rows_ahead` takes them from there and reads their rows. The sparse push runs beside the
dense push; in synchronous modes each of them waits for the other trainers. Of a step only the
pushes leave cores idle, so that is when the thread reads, as long as it is well ahead.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ps_service.client.dense import DenseSide
from ps_service.client.plan import KeyPart, KeyPlan, KeyPlanner
from ps_service.client.sparse import NextRead, PushOutcome, SparseClient
from ps_service.ranges import BatchRange
from services.kit.telemetry import timed
from services.kit.trail import bound
from trainer_service.batch import Batch
from trainer_service.metrics import TrainerMetrics
from trainer_service.sources import Source
from trainer_service.step import StepResult

log = logging.getLogger(__name__)

_READ_SECONDS = 0.2  # longest read of the source before the thread looks whether it must end
_LAG_SECONDS = 1.0  # how often the source is asked for its lag

Floats = npt.NDArray[np.float32]


class Stopped(Exception):
    """The process is stopping."""


@dataclass(frozen=True)
class Planned:
    """A batch and the plan of its keys; no batch when the stream was silent."""

    batch: Batch | None
    plan: KeyPlan

    @property
    def labels(self) -> Floats:
        """Labels of the batch (n,)."""
        return np.zeros(0, np.float32) if self.batch is None else self.batch.labels


class SourceObserver(Protocol):
    """Told about the source's counters by the reader's thread."""

    def source(self, *, bad_rows: int, lag: int | None, total_samples: int | None) -> None:
        """What the source says about itself, see `sources.Source`."""


class ReadAhead:
    """Planned batches of a source, read by a thread of its own, which is the only user of the
    source.
    """

    def __init__(
        self,
        source: Source,
        planner: KeyPlanner,
        metrics: TrainerMetrics,
        *,
        depth: int = 4,
        low: int | None = None,
        idle_after: float | None = None,
        observer: SourceObserver | None = None,
    ) -> None:
        """Holds at most `depth` batches. With `low` or more of them (None: never), it reads the
        next only when `cores_free` says so. With `idle_after`, `next` gives an empty batch after
        that many silent seconds; for sources that wait for people. Without it the batches of a run
        don't depend on timing.
        """
        self._source, self._planner, self._metrics = source, planner, metrics
        self._low = depth + 1 if low is None else low
        self._idle_after, self._observer = idle_after, observer
        self._idle = Planned(None, _plan(planner, None))
        self._queue: queue.Queue[Planned | Exception] = queue.Queue(depth)
        self._end: Exception | None = None
        self._closed = threading.Event()
        self._turn = threading.Event()  # to look whether to read
        self._lag: int | None = None
        self._lag_asked = 0.0
        self._thread = threading.Thread(target=self._work, name="read-ahead", daemon=True)
        self._thread.start()

    def next(self, stop: threading.Event) -> Planned:
        """The next batch. Raises EndOfData after the last one, Stopped when `stop` is set, or what
        broke the source.
        """
        if self._end is not None:
            raise self._end
        patience = _READ_SECONDS if self._idle_after is None else self._idle_after
        while not stop.is_set():
            try:
                item = self._queue.get(timeout=patience)
            except queue.Empty:
                if self._idle_after is None:
                    continue
                return self._idle
            self._taken()
            if isinstance(item, Exception):
                self._end = item
                raise item
            return item
        raise Stopped

    def poll(self) -> Planned | None:
        """The next batch if it is there already; the end is left to `next`."""
        if self._end is not None:
            return None
        try:
            item = self._queue.get_nowait()
        except queue.Empty:
            return None
        self._taken()
        if isinstance(item, Exception):
            self._end = item
            return None
        return item

    def cores_free(self) -> None:
        """Lets one more batch be read now, however many there are."""
        self._turn.set()

    def close(self) -> None:
        """Ends the thread and closes the source; batches read ahead are dropped."""
        self._closed.set()
        self._turn.set()
        self._thread.join(timeout=30)
        if self._thread.is_alive():
            log.warning("the source still reads 30 s after it was asked to end")
        self._source.close()

    def _work(self) -> None:
        try:
            while self._awaits_turn():
                batch = self._source.next_batch(_READ_SECONDS)
                self._observe()
                if batch is not None:
                    with timed(self._metrics.phase_seconds.labels("plan")):
                        planned = Planned(batch, _plan(self._planner, batch))
                    self._put(planned)
        except Exception as error:  # EndOfData too; the loop gets it after the batches before it
            self._observe()
            self._put(error)

    def _awaits_turn(self) -> bool:
        """Whether there is a turn before this is closed."""
        if self._queue.qsize() >= self._low:
            self._turn.wait()
        self._turn.clear()
        return not self._closed.is_set()

    def _taken(self) -> None:
        if self._queue.qsize() < self._low:
            self._turn.set()

    def _observe(self) -> None:
        if self._observer is None:
            return
        if time.monotonic() - self._lag_asked >= _LAG_SECONDS:
            self._lag, self._lag_asked = self._source.lag(), time.monotonic()
        self._observer.source(
            bad_rows=self._source.bad_rows,
            lag=self._lag,
            total_samples=self._source.total_samples,
        )

    def _put(self, item: Planned | Exception) -> None:
        while not self._closed.is_set():
            try:
                return self._queue.put(item, timeout=_READ_SECONDS)
            except queue.Full:
                continue


@dataclass(frozen=True)
class Pushed:
    """What a step's pushes led to."""

    parameters: Floats  # the dense parameters of the next step (n,)
    pause: bool  # every trainer of this step asked to pause after it
    missing: int  # keys whose row was gone
    rows: list[Floats]  # of each part of `then`, read after the push of the rows


class Servers:
    """Both parameter servers as the loop sees them."""

    def __init__(self, sparse: SparseClient, dense: DenseSide) -> None:
        self._sparse, self._dense = sparse, dense
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="sparse-push")

    def pull(self, keys: KeyPlan | KeyPart, *, step: int, read_only: bool = False) -> Floats:
        """Rows of a plan's distinct keys or of a part of them, in their own layout (v,)."""
        return self._sparse.pull(keys, step=step, read_only=read_only)

    def push(
        self,
        plan: KeyPlan,
        result: StepResult,
        *,
        step: int,
        read_step: int,
        pause: bool,
        rows: BatchRange | None = None,
        then: Sequence[NextRead] = (),
    ) -> Pushed:
        """Sends both gradients of a step and waits until both are applied; `then` is read once the
        rows are.
        """
        samples = len(result.probabilities)

        def push_rows() -> PushOutcome:
            if result.projections:
                grads = plan.add_up(*result.projections)
            else:
                grads = plan.scatter(*result.row_grads)
            return self._sparse.push(
                plan,
                grads,
                step=step,
                read_step=read_step,
                samples=samples,
                rows=rows,
                then=then,
            )

        row_push = self._beside.submit(bound(push_rows))
        try:
            dense = self._dense.push(
                result.dense_grads, step=step, samples=samples, pause=pause, rows=rows
            )
        finally:
            outcome = row_push.result()
        return Pushed(dense.values, dense.pause, outcome.missing, outcome.rows)

    def leave(self, step: int) -> None:
        """No step follows `step`: other trainers' barriers stop waiting for this one."""
        self._sparse.leave(step)
        self._dense.leave(step)

    def close(self) -> None:
        """Cancels calls under way and frees the channels."""
        self._sparse.close()
        self._dense.close()
        self._beside.shutdown(wait=False, cancel_futures=True)


def _plan(planner: KeyPlanner, batch: Batch | None) -> KeyPlan:
    if batch is None:
        return planner.plan(np.zeros(0, np.uint64), np.zeros(1, np.int32), 0)
    return planner.plan(batch.keys, batch.offsets, batch.samples, batch.labels)
