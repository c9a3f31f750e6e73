"""Rows of the next batches, read while the step runs, and yet as this trainer left them.

At the start of step t the batches t+1 … t+depth that are planned already are in the window. A key
of such a batch that no step from t on changes before it is pulled now: beside the step for t+1,
for those behind it beside the pushes of t, which leave cores idle. Any other key is read with the
reply to the push that changes it last: the shard applies that push and then reads. So every row is
read exactly once for each batch, and never before a gradient of this trainer is in it: one trainer
gets the same bits at any depth. Only what *other* trainers did to a row meanwhile may be missing
from it, for `depth` steps at most.

Knows neither the source nor the step; the loop's thread decides everything, workers only compute
the overlaps and wait for shards.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ps_service.client.plan import KeyPart, KeyPlan, RecentKeys
from ps_service.client.sparse import NextRead
from services.kit.telemetry import timed
from trainer_service.batch import Batch
from trainer_service.metrics import TrainerMetrics
from trainer_service.pipeline import Floats, Planned, Pushed, ReadAhead, Servers
from trainer_service.step import StepResult

_NO_STEP = 0  # steps count from 1

# Keys of a batch by the step whose push changes them last before it is its turn.
_Split = dict[int, KeyPart]


class _Reading:
    """Rows on their way. Of the loop's thread."""

    def __init__(
        self,
        split: Future[_Split],
        values: Floats,
        begin: Callable[[], Future[None]],
    ) -> None:
        """`values` (v,), in the plan's layout, are complete once the step before is pushed; `begin`
        begins to pull those of _NO_STEP.
        """
        self.split, self.values = split, values
        self._begin = begin
        self._pulled: Future[None] | None = None

    def begin(self) -> Future[None]:
        """Begins the pull, once; who waits for it is told what befell it."""
        if self._pulled is None:
            self._pulled = self._begin()
        return self._pulled


@dataclass(frozen=True, eq=False)
class Coming:
    """A batch with its number, and where its rows are."""

    planned: Planned
    step: int
    read_step: int  # the step under way when the first of its rows were read
    reading: _Reading | None = None  # None: nothing is read yet

    @property
    def batch(self) -> Batch | None:
        """The batch, if there is one; see Planned."""
        return self.planned.batch

    @property
    def plan(self) -> KeyPlan:
        """The plan of its keys."""
        return self.planned.plan


class RowsAhead:
    """Numbers the batches and reads the rows of up to `depth` of them ahead; with 0 none."""

    def __init__(
        self,
        batches: ReadAhead,
        servers: Servers,
        metrics: TrainerMetrics,
        *,
        depth: int,
        after: int = 0,
    ) -> None:
        """The first batch is that of step `after` + 1."""
        self._batches, self._servers, self._metrics = batches, servers, metrics
        self._depth, self._step = depth, after
        self._window: deque[Coming] = deque()
        self._recent = RecentKeys()
        self._splits = ThreadPoolExecutor(1, thread_name_prefix="key-split")  # one: in their order
        self._pulls = ThreadPoolExecutor(max(1, depth), thread_name_prefix="rows-ahead")

    @property
    def step(self) -> int:
        """The last step whose batch was handed out."""
        return self._step

    def next(self, stop: threading.Event) -> Coming:
        """The batch of the next step; begins to read the rows of those behind it. Raises like
        `ReadAhead.next`.
        """
        if self._window:
            current = self._window.popleft()
        else:
            step = self._step + 1
            current = Coming(self._batches.next(stop), step, read_step=step)
        self._step = current.step
        self._look_ahead(current)
        return current

    def pull(self, current: Coming) -> Floats:
        """Rows of the batch (v,) in its plan's layout; raises what befell their pull."""
        if current.reading is None:
            return self._servers.pull(current.plan, step=current.step)
        current.reading.begin().result()
        return current.reading.values

    def push(self, current: Coming, result: StepResult, *, pause: bool) -> Pushed:
        """Sends both gradients of the step and waits until both are applied; brings along the rows
        it changed that the next batches need.
        """
        self._batches.cores_free()
        changed = []
        for coming in self._window:
            if coming.reading is not None:
                coming.reading.begin()  # beside the push: the next step needs all cores
                part = coming.reading.split.result().get(current.step)
                if part is not None:
                    changed.append((coming, coming.reading.values, part))
        reply = self._servers.push(
            current.plan,
            result,
            step=current.step,
            read_step=current.read_step,
            pause=pause,
            rows=current.batch.rows if current.batch is not None else None,
            then=[NextRead(part, coming.step) for coming, _, part in changed],
        )
        for (coming, values, part), rows in zip(changed, reply.rows, strict=True):
            coming.plan.place(rows, part, values)
            self._metrics.refreshed_rows.inc(len(part.positions))
        return reply

    def settle(self) -> None:
        """Waits until no pull is under way; raises what befell one."""
        for coming in self._window:
            if coming.reading is not None:
                coming.reading.begin().result()

    def close(self) -> None:
        """Begins nothing more; calls under way are ended by closing the servers' clients."""
        self._splits.shutdown(wait=False, cancel_futures=True)
        self._pulls.shutdown(wait=False, cancel_futures=True)

    def _look_ahead(self, current: Coming) -> None:
        last = self._window[-1] if self._window else current
        while len(self._window) < self._depth:
            planned = self._batches.poll()
            if planned is None:
                return
            last = self._read(planned, last, current.step)
            if last.reading is not None and last.step == current.step + 1:
                last.reading.begin()  # that step follows at once
            self._window.append(last)

    def _read(self, planned: Planned, before: Coming, oldest: int) -> Coming:
        """Begins to find out which rows of the step after `before` may be pulled; the steps from
        `oldest` to it are not yet pushed.
        """
        plan, step = planned.plan, before.step + 1
        values = np.empty(plan.value_floats, np.float32)

        def split() -> _Split:
            if before.reading is None:  # it came without being read ahead, so nobody knows its keys
                self._recent.split(before.plan, before.step, before.step)
            return self._recent.split(plan, step, oldest)

        def pull() -> None:
            part = splitting.result()[_NO_STEP]
            with timed(self._metrics.phase_seconds.labels("ahead")):
                plan.place(self._servers.pull(part, step=step), part, values)

        splitting = self._splits.submit(split)
        reading = _Reading(splitting, values, lambda: self._pulls.submit(pull))
        return Coming(planned, step, oldest, reading)
