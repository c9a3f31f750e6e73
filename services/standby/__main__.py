"""`python -m services.standby`: a container that waits for work; settings from EMBERMESH_STANDBY_*
and, where there are certificates, EMBERMESH_TLS_*.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
import uuid
from collections.abc import Mapping

import prometheus_client

from services.kit import config, lifecycle, telemetry, tls, usage
from services.kit.discovery import Registry, connect
from services.kit.errors import InvalidInput
from services.kit.member import MemberConfig
from services.kit.net import advertised
from services.kit.standby import Agent, Board, Work
from services.kit.tracing import TracingConfig
from services.standby.agent import StandbyAgent
from services.standby.child import Child
from services.standby.config import StandbyConfig
from services.standby.metrics import StandbyMetrics

log = logging.getLogger(__name__)

# Whoever can write to Redis must not get any program of this image run, nor its interpreter bent.
_MODULES = ("ps_service", "trainer_service")
_VARIABLES = ("PYTHONUNBUFFERED", "TF_CPP_MIN_LOG_LEVEL")
_PREFIXES = (MemberConfig.PREFIX, TracingConfig.PREFIX)


class Launcher:
    """Work -> its process, with this agent's own address of Redis, interface and certificates."""

    def __init__(self, settings: StandbyConfig, certificates: tls.Tls | None) -> None:
        self._own = {
            f"{MemberConfig.PREFIX}REDIS_URL": settings.redis_url,
            f"{MemberConfig.PREFIX}HOST": settings.host,
            **(config.environment(certificates.settings) if certificates else {}),
        }

    def __call__(self, work: Work) -> Child:
        """Starts it. Raises InvalidInput for another module or variable than those of a job."""
        return Child(self.command(work), self.environment(work), sys.stdout.buffer)

    def command(self, work: Work) -> list[str]:
        """Program and arguments. Raises InvalidInput, see __call__."""
        if work.module not in _MODULES:
            raise InvalidInput(f"module {work.module!r} is not one of {', '.join(_MODULES)}")
        return [sys.executable, "-m", work.module, *work.arguments]

    def environment(self, work: Work) -> Mapping[str, str]:
        """Of the process. Raises InvalidInput, see __call__."""
        for name in work.env:
            if name not in _VARIABLES and not name.startswith(_PREFIXES):
                raise InvalidInput(f"variable {name} is not one of a job's process")
        return {**config.inherited(), **work.env, **self._own}


def serve(stop: threading.Event, launcher: type[Launcher] = Launcher) -> None:
    """Stands by until `stop`."""
    settings = config.load(StandbyConfig)
    roles = settings.parsed_roles()
    telemetry.setup_logging(settings.log_level, service="standby")
    client = connect(settings.redis_url)
    name = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    metrics_registry = prometheus_client.CollectorRegistry()
    usage.expose(metrics_registry)
    certificates = tls.load()
    if certificates is not None:
        certificates.expose(metrics_registry)
    agent = StandbyAgent(
        Agent(name, roles, advertised(settings.host)),
        Board(client),
        Registry(client),
        launcher(settings, certificates),
        StandbyMetrics(metrics_registry),
        time.monotonic,
    )
    endpoint = telemetry.TelemetryServer(
        metrics_registry, agent.ready, settings.host, settings.metrics_port
    )
    log.info("agent %s stands by for %s", name, ", ".join(map(str, roles)))
    try:
        agent.run(stop, settings.stop_seconds)
    finally:
        endpoint.close()


if __name__ == "__main__":
    lifecycle.main(serve)
