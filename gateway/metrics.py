"""Metrics of the gateway."""

from __future__ import annotations

import prometheus_client

from services.api.views import JobState
from services.kit.telemetry import LATENCY_BUCKETS


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
