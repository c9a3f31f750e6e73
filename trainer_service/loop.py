"""THE loop: the verbs of a mini-batch, in order. docs/walkthrough.md follows one batch through
them.

Every line of `_take` is a hop to one file. What runs in parallel with them is the business of
`pipeline` and `rows_ahead`, what an answer means that of the parameter servers.
"""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from services.kit.telemetry import timed
from trainer_service.control import PauseGate, Stand
from trainer_service.metrics import TrainerMetrics
from trainer_service.pipeline import Floats, Servers, Stopped
from trainer_service.positions import Positions
from trainer_service.progress import Progress
from trainer_service.rows_ahead import Coming, RowsAhead
from trainer_service.sources import EndOfData
from trainer_service.step import StepResult, TrainStep
from trainer_service.step_spans import StepSpans

log = logging.getLogger(__name__)


class Loop:
    """Takes steps until the data ends or the process is asked to stop. One thread."""

    def __init__(
        self,
        *,
        rows: RowsAhead,
        servers: Servers,
        step: TrainStep,
        positions: Positions,
        gate: PauseGate,
        progress: Progress,
        metrics: TrainerMetrics,
        spans: StepSpans | None = None,
    ) -> None:
        self._rows, self._servers, self._step = rows, servers, step
        self._positions, self._gate = positions, gate
        self._progress, self._metrics = progress, metrics
        self._spans = spans

    def run(self, parameters: Floats, stop: threading.Event) -> bool:
        """Trains from the dense `parameters` (n,) that hold before the first step; whether the data
        ended (else `stop` was set, between two steps).

        At the end of the data the barriers no longer wait for this trainer and every Pause is
        answered at once.
        """
        step = self._rows.step
        try:
            while not stop.is_set():
                with self._progress.waiting(), self._phase("wait"):
                    current = self._rows.next(stop)
                step = current.step
                with self._traced(step):
                    parameters = self._take(current, parameters)
        except EndOfData:
            self._servers.leave(step)
            self._progress.finished()
            self._gate.finish(self._stand(step))
            log.info("end of data after %d steps, %d samples", step, self._progress.samples)
            return True
        except Stopped:
            pass
        log.info("stopping after step %d", step)
        return False

    def _take(self, current: Coming, parameters: Floats) -> Floats:
        """One step: returns the new dense parameters, once rows and parameters of this step are
        applied.
        """
        batch, plan, step = current.batch, current.plan, current.step
        if batch is None or batch.samples == 0:
            result = self._nothing()
        else:
            with self._phase("pull"):
                values = self._rows.pull(current)
            with self._phase("step"):
                result = self._step.take(
                    plan, values, batch.dense, batch.labels, parameters, step=step
                )
        token = self._gate.requested() if self._positions.settled else ""
        with self._phase("push"):
            reply = self._rows.push(current, result, pause=bool(token))
        if batch is not None:
            self._positions.advance(batch.next)
        self._metrics.keys.inc(plan.unique_keys)
        self._metrics.missing_keys.inc(reply.missing)
        self._metrics.projected_steps.inc(bool(result.projections))
        self._progress.stepped(
            step, result, current.planned.labels, staleness=step - current.read_step
        )
        if reply.pause:
            self._rows.settle()
            self._metrics.pause_seconds.observe(self._gate.hold(token, self._stand(step)))
        return reply.parameters

    def _nothing(self) -> StepResult:
        """What a step without rows contributes: others' barriers need it."""
        zeros = np.zeros(self._step.parameters, np.float32)
        return StepResult(0.0, np.zeros(0, np.float32), (self._step.rows(0),), zeros)

    def _stand(self, step: int) -> Stand:
        return Stand(step, self._progress.samples, self._positions.entries())

    def _phase(self, name: str) -> AbstractContextManager[object]:
        clock = timed(self._metrics.phase_seconds.labels(name))
        return clock if self._spans is None else self._spans.phase(name, clock)

    def _traced(self, step: int) -> AbstractContextManager[object]:
        return nullcontext() if self._spans is None else self._spans.step(step)
