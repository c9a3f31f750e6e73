"""The chassis of a job's process: settings, lease, telemetry, exit. Only `body` differs by role.

A member reads its run from Redis, announces itself, serves, and leaves its last word (done, or why
it failed) in its lease for the gateway to read. It goes on when the gateway or Redis is away.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import prometheus_client

from services.kit import config, errors, lifecycle, memory, telemetry, tls, tracing, usage
from services.kit.discovery import Heartbeat, Member, Phase, Registry, Role, Run, connect
from services.kit.telemetry import LogFields
from services.kit.tls import Tls
from services.kit.tracing import TracingConfig

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class MemberConfig:
    """Settings of one process of a job."""

    PREFIX: ClassVar[str] = "EMBERMESH_MEMBER_"
    job: str
    generation: int
    rank: int
    redis_url: str
    incarnation: int = 0  # trainers: the first process of the rank, or one that replaced it
    host: str = "127.0.0.1"  # interface of the gRPC and metrics ports
    port: int = 0  # gRPC; 0 = a free one, announced in the lease
    metrics_port: int = 0  # HTTP /metrics, /healthz, /readyz
    log_level: str = "info"
    shard_threads: int = 0  # of a sparse shard, for one large request; 0 = usable CPUs, at most 8
    standby_mb: int = 256  # for new rows of a sparse shard; at most 1/8 of the usable memory
    plan_threads: int = 1  # of a trainer, that plan, gather and sum a large batch


class MemberProcess:
    """One running member: its run, its metrics registry, and what it says about itself."""

    def __init__(
        self,
        role: Role,
        settings: MemberConfig,
        registry: Registry,
        run: Run,
        tls: Tls | None = None,
        logs: LogFields | None = None,
        otlp: TracingConfig | None = None,
    ) -> None:
        self.settings, self.registry, self.run, self.tls = settings, registry, run, tls
        self.logs = logs or LogFields({})
        self.metrics = prometheus_client.CollectorRegistry()
        self.otlp = otlp or TracingConfig()
        self.traces = tracing.start(self.otlp, str(role), self.metrics, _place(settings))
        usage.expose(self.metrics)
        if tls is not None:
            tls.expose(self.metrics)
        self._usage = usage.UsageMeter()
        self._lock = threading.Lock()
        self._member = Member(
            settings.job, settings.generation, role, settings.rank, incarnation=settings.incarnation
        )
        self._status: Callable[[], dict[str, Any]] = dict
        self._telemetry = telemetry.TelemetryServer(
            self.metrics, self._ready, settings.host, settings.metrics_port
        )
        self.update(metrics_address=self._telemetry.address)
        self._heartbeat = Heartbeat(registry, self.describe)
        self._others: list[Heartbeat] = []  # of servers that live in this process

    def describe(self) -> Member:
        """The present lease content."""
        with self._lock:
            member, status = self._member, self._status
        # Outside the lock: status() may call update.
        return dataclasses.replace(member, status={**self._usage.look(), **status()})

    def update(self, **changes: Any) -> None:
        """Changes address, phase, error, … of the member; seen at the next beat."""
        with self._lock:
            self._member = dataclasses.replace(self._member, **changes)

    def announce(self, phase: Phase, status: Callable[[], dict[str, Any]] | None = None) -> None:
        """Sets the phase and says so at once.

        `status()` is asked at every later beat, on another thread; it must be quick.
        """
        with self._lock:
            self._status = status or self._status
        self.update(phase=phase)
        for other in self._others:
            other.beat()
        self._heartbeat.beat()

    def start(self) -> None:
        """Begins the lease."""
        self._heartbeat.start()

    def serve_also(self, role: Role, status: Callable[[], dict[str, Any]]) -> None:
        """Gives the server of `role` that lives in this process a lease of its own, same rank and
        address, so that everybody finds it where they find one that is a process. `status` as in
        announce. Its metrics are on this member's page.
        """

        def describe() -> Member:
            with self._lock:
                member = self._member
            phase = Phase.READY
            return dataclasses.replace(
                member, role=role, phase=phase, metrics_address="", error="", status=status()
            )

        self._others.append(Heartbeat(self.registry, describe))
        self._others[-1].start()

    def close(self, error: BaseException | None) -> None:
        """Ends the lease; after a failure its last word says what happened."""
        if error is not None:
            expected = isinstance(error, errors.EmbermeshError)
            text = str(error) if expected else f"{type(error).__name__}: {error}"
            permanent = isinstance(error, errors.EmbermeshError) and error.permanent
            self.update(phase=Phase.FAILED, error=text, permanent=permanent)
        for other in self._others:
            other.close(withdraw=True)
        self._heartbeat.close(withdraw=error is None)
        self.traces.close()
        self._telemetry.close()

    def _ready(self) -> bool:
        with self._lock:
            return self._member.phase in (Phase.READY, Phase.DONE)


def _place(settings: MemberConfig) -> dict[str, str | int]:
    """Which process of which job, for logs and traces."""
    return {
        "job": settings.job,
        "generation": settings.generation,
        "rank": settings.rank,
        "incarnation": settings.incarnation,
    }


def main(role: Role, body: Callable[[MemberProcess, threading.Event], None]) -> None:
    """Runs `body(process, stop)` as the process's `__main__` and exits."""

    def supervised(stop: threading.Event) -> None:
        settings = config.load(MemberConfig)
        logs = telemetry.setup_logging(
            settings.log_level, service=str(role), role=str(role), **_place(settings)
        )
        registry = Registry(connect(settings.redis_url))
        run = registry.run(settings.job)
        if run.generation != settings.generation:
            raise errors.Conflict(
                f"job {run.job} is at generation {run.generation}, not {settings.generation}"
            )
        otlp = config.load(TracingConfig)
        process = MemberProcess(role, settings, registry, run, tls.load(), logs, otlp)
        failure: BaseException | None = None
        try:
            process.start()
            body(process, stop)
        except BaseException as error:
            failure = error
            raise
        finally:
            process.close(failure)

    memory.keep_freed()
    lifecycle.main(supervised)
