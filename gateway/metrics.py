"""Metrics of the gateway."""

from __future__ import annotations

import prometheus_client

from services.api.views import JobState
from services.kit.discovery import Role
from services.kit.telemetry import LATENCY_BUCKETS

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def method_label(method: str) -> str:
    """The method, or `other`: a client may invent any number of them."""
    return method if method in _METHODS else "other"


class GatewayMetrics:
    """Declared against a registry of the caller's, so that two gateways can live in one test
    process.
    """

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self.registry = registry
        self.jobs = prometheus_client.Gauge(
            "embermesh_jobs", "Jobs by state.", ["state"], registry=registry
        )
        self.leader = prometheus_client.Gauge(
            "embermesh_gateway_leader", "1 while this gateway acts on jobs.", registry=registry
        )
        self.reconcile_seconds = prometheus_client.Histogram(
            "embermesh_gateway_reconcile_seconds",
            "Time of one look at all active jobs, actions included.",
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.actions = prometheus_client.Counter(
            "embermesh_gateway_actions_total",
            "Actions taken for jobs, by kind.",
            ["kind"],
            registry=registry,
        )
        self.errors = prometheus_client.Counter(
            "embermesh_gateway_reconcile_errors_total",
            "Looks at a job that failed; the next one tries again.",
            registry=registry,
        )
        self.restarts = prometheus_client.Counter(
            "embermesh_job_restarts_total",
            "Generations started because a process failed.",
            registry=registry,
        )
        self.reassignments = prometheus_client.Counter(
            "embermesh_job_reassignments_total",
            "Times that source partitions of dead trainers were given to replacements.",
            registry=registry,
        )
        self.autoscale = AutoscaleMetrics(registry)
        self.http_seconds = prometheus_client.Histogram(
            "embermesh_http_seconds",
            "Time to answer a request of the REST API.",
            ["route", "method", "status"],
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )

    def show_jobs(self, counts: dict[str, int]) -> None:
        """Sets the gauge of every state."""
        for state in JobState:
            self.jobs.labels(str(state)).set(counts.get(str(state), 0))


class AutoscaleMetrics:
    """What the autoscaler sees and wants; a HorizontalPodAutoscaler may read the gauges too."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self._wanted = prometheus_client.Gauge(
            "embermesh_autoscale_wanted_replicas",
            "Replicas the job should have.",
            ["job", "role"],
            registry=registry,
        )
        self._load = prometheus_client.Gauge(
            "embermesh_autoscale_load",
            "Share of what the job's present replicas can do; above 1 they are too few.",
            ["job", "role"],
            registry=registry,
        )
        self._decisions = prometheus_client.Counter(
            "embermesh_autoscale_decisions_total",
            "Changes of the number of replicas that were asked for: up or down.",
            ["role", "direction"],
            registry=registry,
        )
        for role in (Role.TRAINER, Role.SPARSE_PS):
            for direction in ("up", "down"):
                self._decisions.labels(str(role), direction)
        self._shown: set[tuple[str, str]] = set()

    def show(self, job: str, role: str, replicas: int, load: float) -> None:
        """The present wish."""
        self._shown.add((job, role))
        self._wanted.labels(job, role).set(replicas)
        self._load.labels(job, role).set(load)

    def hide(self, job: str) -> None:
        """Drops the job's series."""
        for shown in [s for s in self._shown if s[0] == job]:
            self._shown.remove(shown)
            self._wanted.remove(*shown)
            self._load.remove(*shown)

    def decided(self, role: str, *, up: bool) -> None:
        """Another number of replicas was asked for."""
        self._decisions.labels(role, "up" if up else "down").inc()
