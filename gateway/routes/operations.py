"""For machines: health, readiness, metrics, and where Prometheus finds the jobs' processes."""

from __future__ import annotations

from typing import Any

import prometheus_client
from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from gateway.deps import Parts, Viewer
from services.kit.errors import Unavailable

router = APIRouter(tags=["operations"])


@router.get("/healthz", response_class=PlainTextResponse)
def healthz() -> str:
    """The process is alive."""
    return "ok\n"


@router.get("/readyz", response_class=PlainTextResponse)
def readyz(gateway: Parts) -> str:
    """Requests can be answered: Redis is there."""
    gateway.store.ping()
    return "ready\n"


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(gateway: Parts) -> Response:
    """The gateway's own metrics."""
    try:
        gateway.metrics.show_jobs(gateway.store.counts())
    except Unavailable:
        gateway.metrics.jobs.clear()  # no value is better than an old one
    body = prometheus_client.generate_latest(gateway.metrics.registry)
    return Response(body, media_type=prometheus_client.CONTENT_TYPE_LATEST)


@router.get("/v1/services/prometheus")
def prometheus(gateway: Parts, who: Viewer) -> list[dict[str, Any]]:
    """Every process of every active job the caller may see, as Prometheus's http_sd_configs."""
    return [
        {
            "targets": [member.metrics_address],
            "labels": {"job": record.id, "role": str(member.role), "rank": str(member.rank)},
        }
        for record in gateway.store.active(who.tenant)
        for member in gateway.registry.members(record.id, record.generation)
        if member.metrics_address
    ]
