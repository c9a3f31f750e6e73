"""`python -m gateway`: the REST API and the reconciler, until SIGTERM. The only composition root of
the gateway.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import cast

import prometheus_client
import uvicorn

from gateway import oidc
from gateway import store as storing
from gateway.access_config import TOKEN, AccessConfig
from gateway.app import create_app
from gateway.audit import Audit
from gateway.checkpoints import CheckpointClient
from gateway.compile import Surroundings
from gateway.config import GatewayConfig
from gateway.deps import Gateway
from gateway.door import Door
from gateway.last_logs import KeptLogs
from gateway.loop import Reconciler, Tools
from gateway.metrics import GatewayMetrics
from gateway.oidc import Keys, OidcVerifier
from gateway.rate import RateLimiter
from gateway.reconciler import Limits
from gateway.targets import Measured, Target
from gateway.tenancy import Tenancy
from services.kit import config, lifecycle, plugins, telemetry, tls, tracing, usage
from services.kit.discovery import Registry
from services.kit.errors import Unavailable
from services.kit.storage import Storage
from services.kit.tracing import TracingConfig

log = logging.getLogger(__name__)

_DRAIN_SECONDS = 10  # for requests that are under way


def serve(stop: threading.Event) -> None:
    """Runs the gateway until `stop`. Raises Unavailable when the port is in use."""
    settings = config.load(GatewayConfig)
    telemetry.setup_logging(settings.log_level, service="gateway")
    registry = prometheus_client.CollectorRegistry()
    usage.expose(registry)
    access = config.load(AccessConfig)
    access.check_host(settings.host)
    otlp = config.load(TracingConfig)
    certificates = tls.load()
    if certificates is not None:
        certificates.expose(registry)
    gateway, reconciler = assemble(settings, registry, access, certificates, otlp)
    _say_who_may_come(access)
    with _listen(settings.host, settings.port) as listener:
        server = uvicorn.Server(
            uvicorn.Config(
                create_app(gateway),
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=_DRAIN_SECONDS,
            )
        )
        thread = threading.Thread(target=server.run, args=([listener],), name="http")
        thread.start()
        reconciler.start()
        log.info("listening on http://%s:%d", *listener.getsockname()[:2])
        try:
            while thread.is_alive() and not stop.wait(0.5):
                pass
        finally:
            gateway.closing.set()  # ends the streams
            server.should_exit = True
            reconciler.close()
            thread.join(_DRAIN_SECONDS)
            gateway.checkpoints.close()  # a request that waits for one ends with an error now
            thread.join()
            gateway.audit.close()
            gateway.traces.close()
    if not stop.is_set():
        raise Unavailable("the HTTP server ended by itself; its log says why")


def assemble(
    settings: GatewayConfig,
    metrics_registry: prometheus_client.CollectorRegistry,
    access: AccessConfig,
    certificates: tls.Tls | None = None,
    otlp: TracingConfig | None = None,
) -> tuple[Gateway, Reconciler]:
    """The parts as the settings describe them. Raises InvalidInput for an unknown target, an
    audit file that can't be written, or an issuer that isn't https://.
    """
    traces = tracing.start(otlp or TracingConfig(), "gateway", metrics_registry)
    client = storing.connect(settings.redis_url)
    store, registry = storing.JobStore(client), Registry(client)
    create_target = plugins.load("gateway.targets", settings.target)
    target = cast(Callable[[GatewayConfig], Target], create_target)(settings)
    if isinstance(target, Measured):
        target.expose(metrics_registry)
    checkpoints = CheckpointClient(
        settings.checkpoint_address, settings.checkpoint_seconds, tls=certificates, traces=traces
    )
    tools = Tools(
        store=store,
        registry=registry,
        target=target,
        checkpoints=checkpoints,
        metrics=GatewayMetrics(metrics_registry),
        around=_around(settings, certificates, otlp),
        limits=_limits(settings),
        kept=KeptLogs(client),
        traces=traces,
    )
    owner = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    reconciler = Reconciler(tools, owner, settings.tick_seconds, settings.lease_seconds)
    tenancy = Tenancy(client)
    # An open gateway can't tell its callers apart; one of them must not shut out the others.
    rate = access.rate_per_second if access.mode == TOKEN else 0
    gateway = Gateway(
        store=store,
        registry=registry,
        target=target,
        checkpoints=checkpoints,
        storage=Storage(),
        metrics=tools.metrics,
        access=access,
        tenancy=tenancy,
        door=Door(access, tenancy, _verifier(access), time.time),
        limiter=RateLimiter(rate, access.rate_burst, time.monotonic),
        audit=Audit(access.audit_file),
        wake=reconciler.wake,
        clock=time.time,
        kept=tools.kept,
        traces=traces,
    )
    return gateway, reconciler


def _around(
    settings: GatewayConfig, certificates: tls.Tls | None, otlp: TracingConfig | None
) -> Surroundings:
    return Surroundings(
        settings.redis_url,
        settings.member_host,
        settings.log_level,
        certificates.settings if certificates else None,
        otlp,
        settings.shard_threads,
        settings.standby_mb,
        settings.plan_threads,
    )


def _limits(settings: GatewayConfig) -> Limits:
    return Limits(
        start=settings.start_seconds,
        stop=settings.stop_seconds,
        silence=settings.silence_seconds,
        checkpoint=settings.checkpoint_seconds,
    )


def _verifier(access: AccessConfig) -> OidcVerifier | None:
    if not access.oidc_issuer:
        return None
    keys = Keys(access.oidc_issuer, access.oidc_jwks_url, time.monotonic, oidc.fetch)
    return OidcVerifier(access, keys, time.time)


def _say_who_may_come(access: AccessConfig) -> None:
    if access.mode != TOKEN:
        log.warning("mode %s: everybody who reaches this port is an admin", access.mode)
    elif not (access.admin_digest or access.oidc_issuer):
        log.warning(
            "no %sADMIN_DIGEST is set: only tokens made earlier open the door", access.PREFIX
        )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise Unavailable(f"can't listen on {host}:{port}: {error.strerror}") from error


if __name__ == "__main__":
    lifecycle.main(serve)
