"""THE loop: the verbs of a mini-batch, in order. docs/walkthrough.md follows one batch through
them.

Every line of `_take` is a hop to one file. What runs in parallel with them is the business of
`pipeline`, what an answer means that of the parameter servers.
"""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractContextManager

import numpy as np

from services.kit.telemetry import timed
from trainer_service.control import PauseGate, Stand
from trainer_service.metrics import TrainerMetrics
from trainer_service.pipeline import Floats, Planned, ReadAhead, Servers, Stopped
from trainer_service.positions import Positions
from trainer_service.progress import Progress
from trainer_service.sources import EndOfData
from trainer_service.step import StepResult, TrainStep

log = logging.getLogger(__name__)


class Loop:
    """Takes steps until the data ends or the process is asked to stop. One thread."""

    def __init__(
        self,
        *,
        batches: ReadAhead,
        servers: Servers,
        step: TrainStep,
        positions: Positions,
        gate: PauseGate,
        progress: Progress,
        metrics: TrainerMetrics,
    ) -> None:
        self._batches, self._servers, self._step = batches, servers, step
        self._positions, self._gate = positions, gate
        self._progress, self._metrics = progress, metrics

    def run(self, parameters: Floats, stop: threading.Event, after: int = 0) -> bool:
        """Trains from the dense `parameters` (n,) that hold after step `after`; whether the data
        ended (else `stop` was set, between two steps).

        At the end of the data the barriers no longer wait for this trainer and every Pause is
        answered at once.
        """
        step = after
        try:
            while not stop.is_set():
                with self._progress.waiting(), self._phase("wait"):
                    planned = self._batches.next(stop)
                step += 1
                parameters = self._take(step, planned, parameters)
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

    def _take(self, step: int, planned: Planned, parameters: Floats) -> Floats:
        """Step `step`: returns the new dense parameters, once rows and parameters of this step are
        applied.
        """
        batch, plan = planned.batch, planned.plan
        read_step = step  # the rows below have seen this trainer's own push of step - 1
        if batch is None or batch.samples == 0:
            result = self._nothing()
        else:
            with self._phase("pull"):
                values = self._servers.pull(plan, step=read_step)
                plan.gather(values, self._step.rows(batch.samples))
            with self._phase("step"):
                result = self._step.run(batch.dense, batch.labels, parameters, step=step)
        token = self._gate.requested() if self._positions.settled else ""
        with self._phase("push"):
            reply = self._servers.push(
                plan,
                result,
                step=step,
                read_step=read_step,
                pause=bool(token),
                rows=batch.rows if batch is not None else None,
            )
        if batch is not None:
            self._positions.advance(batch.next)
        self._metrics.keys.inc(plan.unique_keys)
        self._metrics.missing_keys.inc(reply.missing)
        self._progress.stepped(step, result, planned.labels, staleness=step - read_step)
        if reply.pause:
            self._metrics.pause_seconds.observe(self._gate.hold(token, self._stand(step)))
        return reply.parameters

    def _nothing(self) -> StepResult:
        """What a step without rows contributes: others' barriers need it."""
        zeros = np.zeros(self._step.parameters, np.float32)
        return StepResult(0.0, np.zeros(0, np.float32), self._step.rows(0), zeros)

    def _stand(self, step: int) -> Stand:
        return Stand(step, self._progress.samples, self._positions.entries())

    def _phase(self, name: str) -> AbstractContextManager[None]:
        return timed(self._metrics.phase_seconds.labels(name))
