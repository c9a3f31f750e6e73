"""Settings of the checkpoint service."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from services.kit.errors import InvalidInput


@dataclasses.dataclass(frozen=True)
class CheckpointServiceConfig:
    """Where it serves, and how long the parts of a checkpoint may take."""

    PREFIX: ClassVar[str] = "EMBERMESH_CHECKPOINT_"
    redis_url: str
    host: str = "127.0.0.1"  # interface of the gRPC and metrics ports
    port: int = 7700  # gRPC; 0 = a free one
    metrics_port: int = 7701  # HTTP /metrics, /healthz, /readyz; 0 = a free one
    log_level: str = "info"
    scan_seconds: float = 1.0  # between two looks at the active runs
    pause_seconds: float = 150.0  # for all trainers to reach the common step
    hold_seconds: int = 60  # trainers stand still at most this long; snapshots must begin by then
    write_seconds: float = 3600.0  # for all parameter servers to write their files
    resume_seconds: float = 15.0  # for all trainers to answer Resume
    drain_seconds: float = 10.0  # for calls in progress when the service is stopped

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_seconds") and not value > 0:
                name = self.PREFIX + field.name.upper()
                raise InvalidInput(f"{name}={value} must be above 0")
