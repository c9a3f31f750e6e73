"""Metrics of an agent that stands by."""

from __future__ import annotations

import prometheus_client


class StandbyMetrics:
    """Declared against `registry`."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self.busy = prometheus_client.Gauge(
            "embermesh_standby_busy", "1 while the agent runs a process.", registry=registry
        )
        self.started = prometheus_client.Counter(
            "embermesh_standby_starts_total", "Processes the agent has started.", registry=registry
        )
        self.failed = prometheus_client.Counter(
            "embermesh_standby_failures_total",
            "Processes that ended by themselves with another exit code than 0.",
            registry=registry,
        )
        self.redis_errors = prometheus_client.Counter(
            "embermesh_standby_redis_errors_total",
            "Looks at the board that failed because Redis was away; the process goes on meanwhile.",
            registry=registry,
        )
