"""Metrics of the checkpoint service: how long, how big, how old, how often not."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping

import prometheus_client

# Trainers stand still for milliseconds, files are written for seconds to minutes.
_PAUSE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class CheckpointMetrics:
    """Declared against `registry`. Series with a job label live as long as the job is active."""

    def __init__(
        self,
        registry: prometheus_client.CollectorRegistry,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives Unix seconds."""
        self.seconds = prometheus_client.Histogram(
            "embermesh_checkpoint_seconds",
            "Time from the first Pause to the written manifest, of complete checkpoints.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.pause_seconds = prometheus_client.Histogram(
            "embermesh_checkpoint_pause_seconds",
            "Time the trainers of a job stood still for a checkpoint, complete or not.",
            buckets=_PAUSE_SECONDS,
            registry=registry,
        )
        self._bytes = prometheus_client.Gauge(
            "embermesh_checkpoint_bytes",
            "Size of all data files of the job's newest checkpoint.",
            ["job"],
            registry=registry,
        )
        self._failures = prometheus_client.Counter(
            "embermesh_checkpoint_failures_total",
            "Checkpoints of the job that were begun and given up.",
            ["job"],
            registry=registry,
        )
        self._last_success = prometheus_client.Gauge(
            "embermesh_checkpoint_last_success_timestamp_seconds",
            "Unix time of the job's newest complete checkpoint.",
            ["job"],
            registry=registry,
        )
        self._due = prometheus_client.Gauge(
            "embermesh_checkpoint_due_timestamp_seconds",
            "Unix time when the job's next scheduled checkpoint should be complete.",
            ["job"],
            registry=registry,
        )
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: set[str] = set()
        self._every: dict[str, float] = {}  # job -> seconds between its checkpoints

    def scheduled(self, every: Mapping[str, float]) -> None:
        """The active jobs that want checkpoints, each with the seconds between two of them."""
        with self._lock:
            known, self._every = self._every, dict(every)
            self._jobs.update(every)
        for job, seconds in every.items():
            if job not in known:
                self._due.labels(job).set(self._clock() + seconds)

    def succeeded(self, job: str, seconds: float, size: int, created: float) -> None:
        """A checkpoint of `size` bytes is complete; `created` in Unix seconds."""
        self._remember(job)
        self.seconds.observe(seconds)
        self._bytes.labels(job).set(size)
        self._last_success.labels(job).set(created)
        if job in self._every:
            self._due.labels(job).set(created + self._every[job])

    def failed(self, job: str) -> None:
        """A checkpoint was given up."""
        self._remember(job)
        self._failures.labels(job).inc()

    def keep_only(self, jobs: Collection[str]) -> None:
        """Drops the series of all other jobs."""
        with self._lock:
            gone = self._jobs.difference(jobs)
            self._jobs -= gone
        for job in gone:
            for metric in (self._bytes, self._failures, self._last_success, self._due):
                with contextlib.suppress(KeyError):  # this one was never set for the job
                    metric.remove(job)

    def _remember(self, job: str) -> None:
        with self._lock:
            self._jobs.add(job)
        self._failures.labels(job)  # a counter that begins with its first failure shows no increase
