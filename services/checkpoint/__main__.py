"""`python -m services.checkpoint`: the checkpoint service; settings from EMBERMESH_CHECKPOINT_*.

One instance serves all jobs; two at once would number their checkpoints alike.
"""

from __future__ import annotations

import logging
import threading

import prometheus_client

from services.checkpoint.config import CheckpointServiceConfig
from services.checkpoint.coordinator import Coordinator
from services.checkpoint.metrics import CheckpointMetrics
from services.checkpoint.scheduler import Scheduler
from services.checkpoint.servicer import CheckpointServicer
from services.kit import config, discovery, lifecycle, rpc, telemetry, tls, tracing, usage
from services.kit.storage import Storage
from services.kit.tracing import TracingConfig
from services.wire import checkpoint_pb2_grpc

log = logging.getLogger(__name__)

_THREADS = 64  # a Trigger holds one for the time of its checkpoint


def serve(stop: threading.Event) -> None:
    """Runs the service until `stop`."""
    settings = config.load(CheckpointServiceConfig)
    telemetry.setup_logging(settings.log_level, service="checkpoint")
    registry = discovery.Registry(discovery.connect(settings.redis_url))
    metrics_registry = prometheus_client.CollectorRegistry()
    usage.expose(metrics_registry)
    metrics = CheckpointMetrics(metrics_registry)
    certificates = tls.load()
    if certificates is not None:
        certificates.expose(metrics_registry)
    traces = tracing.start(config.load(TracingConfig), "checkpoint", metrics_registry)
    coordinator = Coordinator(
        registry, Storage(), metrics, settings, stop, certificates, traces=traces
    )
    scheduler = Scheduler(registry, coordinator, metrics, settings.scan_seconds, stop)
    endpoint = telemetry.TelemetryServer(
        metrics_registry, scheduler.ready, settings.host, settings.metrics_port
    )
    try:
        server = rpc.serve(
            lambda server: checkpoint_pb2_grpc.add_CheckpointServicer_to_server(
                CheckpointServicer(coordinator), server
            ),
            host=settings.host,
            port=settings.port,
            registry=metrics_registry,
            threads=_THREADS,
            tls=certificates,
            traces=traces,
        )
        log.info("serving at %s, metrics at %s", server.address, endpoint.address)
        scheduler.run()
        server.drain(settings.drain_seconds)
    finally:
        traces.close()
        endpoint.close()


if __name__ == "__main__":
    lifecycle.main(serve)
