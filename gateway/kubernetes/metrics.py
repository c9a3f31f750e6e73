"""Metrics of the gateway's calls to Kubernetes."""

from __future__ import annotations

import prometheus_client

from services.kit.telemetry import LATENCY_BUCKETS


class ApiMetrics:
    """Declared against a registry of the caller's."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self._seconds = prometheus_client.Histogram(
            "embermesh_kubernetes_request_seconds",
            "Time of one request to the Kubernetes API; a repeated call is several requests. "
            "Status `none`: there was no answer.",
            ["method", "status"],
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )

    def answered(self, method: str, status: int, seconds: float) -> None:
        """A request is over; `status` 0 is none, and a success is 200 whatever its kind."""
        self._seconds.labels(method, str(status) if status else "none").observe(seconds)
