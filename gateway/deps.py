"""What routes are given: one object per app, made by `create_app`, never a module's global."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, cast

from fastapi import Depends, Request

from gateway.checkpoints import CheckpointClient
from gateway.metrics import GatewayMetrics
from gateway.store import JobStore
from gateway.targets import Target
from services.kit.discovery import Registry
from services.kit.storage import Storage


@dataclasses.dataclass(frozen=True)
class Gateway:
    """The gateway's parts as routes see them; all are thread-safe."""

    store: JobStore
    registry: Registry
    target: Target
    checkpoints: CheckpointClient
    storage: Storage
    metrics: GatewayMetrics
    wake: Callable[[], None]  # tells the reconciler that something was asked
    clock: Callable[[], float]


def _gateway(request: Request) -> Gateway:
    return cast(Gateway, request.app.state.gateway)


Parts = Annotated[Gateway, Depends(_gateway)]
