"""Settings of an agent that stands by."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from services.kit.discovery import Role
from services.kit.errors import InvalidInput


@dataclasses.dataclass(frozen=True)
class StandbyConfig:
    """What the agent can do, and what its processes have from it rather than from the gateway."""

    PREFIX: ClassVar[str] = "EMBERMESH_STANDBY_"
    redis_url: str
    roles: str  # sparse-ps, dense-ps, trainer: one, or several with commas
    host: str = "0.0.0.0"  # interface of this agent's port and of its processes' ports
    metrics_port: int = 7702  # HTTP /metrics, /healthz, /readyz
    stop_seconds: float = 20.0  # between SIGTERM and SIGKILL of the process when the agent ends
    log_level: str = "info"

    def parsed_roles(self) -> tuple[Role, ...]:
        """`roles` as a sorted tuple. Raises InvalidInput for an unknown role, or none."""
        names = {name.strip() for name in self.roles.split(",")}
        known = {str(role) for role in Role}
        if not names <= known:
            wrong = ", ".join(sorted(names - known)) or "nothing"
            what = f"{self.PREFIX}ROLES={self.roles!r}: {wrong!r}"
            raise InvalidInput(f"{what} is not one of {', '.join(sorted(known))}")
        return tuple(Role(name) for name in sorted(names))
