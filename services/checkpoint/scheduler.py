"""Looks at the active runs every second or so and has their due checkpoints taken.

One job's slow checkpoint never delays another's. Knows when, not how.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from services.api.spec import validate
from services.checkpoint.coordinator import Coordinator
from services.checkpoint.fleet import NotRunning
from services.checkpoint.metrics import CheckpointMetrics
from services.checkpoint.schedule import Schedule, Wish
from services.kit.discovery import Checkpoint, Registry, Run
from services.kit.errors import EmbermeshError, InvalidInput, Unavailable

log = logging.getLogger(__name__)

_JOBS_AT_ONCE = 16


class Scheduler:
    """`run` loops until `stop`; `clock` gives seconds that never jump."""

    def __init__(
        self,
        registry: Registry,
        coordinator: Coordinator,
        metrics: CheckpointMetrics,
        scan_seconds: float,
        stop: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry, self._coordinator, self._metrics = registry, coordinator, metrics
        self._scan_seconds, self._stop, self._clock = scan_seconds, stop, clock
        self._schedule = Schedule()
        self._pool = ThreadPoolExecutor(_JOBS_AT_ONCE, thread_name_prefix="checkpoint")
        self._busy: dict[str, tuple[int, Future[Checkpoint]]] = {}
        self._connected = threading.Event()

    def ready(self) -> bool:
        """Whether the last look at the runs succeeded."""
        return self._connected.is_set()

    def run(self) -> None:
        """Scans until `stop`, then waits for what is under way. A lost Redis is waited for."""
        try:
            while True:
                try:
                    self.scan()
                    self._connected.set()
                except Unavailable as error:
                    self._connected.clear()
                    log.warning("%s", error)
                except Exception:  # e.g. a record of another version: other jobs' turns go on
                    self._connected.clear()
                    log.exception("could not look at the active runs")
                if self._stop.wait(self._scan_seconds):
                    return
        finally:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def scan(self) -> None:
        """One look: begins what is due, notes what has ended. Unavailable when Redis is away."""
        self._reap()
        runs = self._registry.active_runs()
        self._metrics.keep_only({run.job for run in runs})
        wishes = _wishes(runs)
        self._metrics.scheduled({job: wish.every for job, wish in wishes.items()})
        self._schedule.update(wishes, self._clock())
        for job, generation in self._schedule.due(self._clock()):
            if job in self._busy:
                continue
            self._schedule.begun(job, self._clock())
            future = self._pool.submit(self._coordinator.take, job, generation, wait_seconds=0)
            self._busy[job] = generation, future

    def _reap(self) -> None:
        for job, (generation, future) in list(self._busy.items()):
            if not future.done():
                continue
            del self._busy[job]
            error = future.exception()
            if error is None:
                continue
            self._schedule.failed(job, generation, self._clock())
            if isinstance(error, NotRunning):
                log.info("checkpoint put off: %s", error)
            elif isinstance(error, EmbermeshError):
                log.warning("scheduled checkpoint of job %s: %s", job, error)
            else:
                log.error("scheduled checkpoint of job %s failed", job, exc_info=error)


def _wishes(runs: Sequence[Run]) -> dict[str, Wish]:
    wishes = {}
    for run in runs:
        try:
            section = validate(run.spec).checkpoint
        except InvalidInput as error:  # written by another version of the platform
            log.warning("job %s gets no scheduled checkpoints: %s", run.job, error)
            continue
        if section is not None and section.every is not None:
            wishes[run.job] = Wish(run.generation, section.every)
    return wishes
