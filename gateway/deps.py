"""What routes are given: one object per app, made by `create_app`, never a module's global; and who
asks.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Annotated, cast

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from gateway.access_config import AccessConfig
from gateway.audit import Audit
from gateway.checkpoints import CheckpointClient
from gateway.door import Door
from gateway.identity import Identity
from gateway.last_logs import KeptLogs
from gateway.metrics import GatewayMetrics
from gateway.rate import RateLimiter
from gateway.record import JobRecord
from gateway.store import JobStore
from gateway.targets import Target
from gateway.tenancy import Tenancy
from services.api.access import AccessRole
from services.kit import tracing
from services.kit.discovery import Registry
from services.kit.errors import Forbidden, NotFound, Unauthenticated
from services.kit.storage import Storage
from services.kit.tracing import Tracing


@dataclasses.dataclass(frozen=True)
class Gateway:
    """The gateway's parts as routes see them; all are thread-safe."""

    store: JobStore
    registry: Registry
    target: Target
    checkpoints: CheckpointClient
    storage: Storage
    metrics: GatewayMetrics
    access: AccessConfig
    tenancy: Tenancy
    door: Door
    limiter: RateLimiter
    audit: Audit
    wake: Callable[[], None]  # tells the reconciler that something was asked
    clock: Callable[[], float]
    kept: KeptLogs
    traces: Tracing = tracing.OFF
    closing: threading.Event = dataclasses.field(default_factory=threading.Event)

    def job(self, who: Identity, job: str) -> JobRecord:
        """The job's record, if it exists for the caller. Raises NotFound."""
        return visible(who, self.store.get(job))


def visible(who: Identity, record: JobRecord) -> JobRecord:
    """The record; another tenant's job raises the same NotFound as one that doesn't exist."""
    if not who.sees(record.tenant):
        raise NotFound(f"there is no job {record.id!r}")
    return record


def _gateway(request: Request) -> Gateway:
    return cast(Gateway, request.app.state.gateway)


Parts = Annotated[Gateway, Depends(_gateway)]

_BEARER = HTTPBearer(auto_error=False, description="A token of `embermesh token create`, or OIDC.")


def _needs(role: AccessRole) -> Callable[..., Identity]:
    def admitted(
        request: Request,
        gateway: Parts,
        bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
    ) -> Identity:
        try:
            who = gateway.door.identify(bearer.credentials if bearer else None)
        except Unauthenticated:
            # Only failures count against an address: behind a proxy many callers share one.
            address = request.client.host if request.client else "unknown"
            gateway.limiter.take(f"refused:{address}")
            raise
        request.state.identity = who  # for the audit log
        gateway.limiter.take(who.subject)
        if not who.role.includes(role):
            raise Forbidden(f"{who.subject} is {who.role}; this needs {role}")
        return who

    return admitted


Viewer = Annotated[Identity, Depends(_needs(AccessRole.VIEWER))]
Operator = Annotated[Identity, Depends(_needs(AccessRole.OPERATOR))]
Admin = Annotated[Identity, Depends(_needs(AccessRole.ADMIN))]
