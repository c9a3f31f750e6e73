"""Who may do what at the gateway: roles, tokens, tenants and quotas, as the API shows them."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import Field

from services.api.base import Strict
from services.api.views import View

ALL_TENANTS = "*"
DEFAULT_TENANT = "default"
NAME = r"^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$"
TenantName = Annotated[str, Field(pattern=NAME)]
TenantScope = Annotated[str, Field(pattern=rf"{NAME}|^\*$")]


class AccessRole(str, Enum):
    """What a caller may do; each role includes the one before it."""

    VIEWER = "viewer"  # look at jobs, events, logs and checkpoints
    OPERATOR = "operator"  # also submit, cancel, scale, checkpoint and restore
    ADMIN = "admin"  # also tokens of the own tenant; of all tenants: quotas too

    def __str__(self) -> str:
        return self.value

    def includes(self, other: AccessRole) -> bool:
        """Whether this role may do what `other` may."""
        order = list(AccessRole)
        return order.index(self) >= order.index(other)


class CallerView(View):
    """Whom the gateway takes the caller for."""

    subject: str  # as the audit log names it
    tenant: str  # in which it acts; * = all
    role: AccessRole


class TokenRequest(Strict):
    """Body of `POST /v1/tokens`."""

    name: str = Field(min_length=1, max_length=100, description="For people: who or what has it.")
    role: AccessRole = AccessRole.VIEWER
    tenant: TenantScope | None = Field(
        default=None, description="Default: the caller's own; * for all needs an admin of all."
    )
    days: float | None = Field(
        default=None, gt=0, le=3650, description="Until it expires; default: it doesn't."
    )


class TokenView(View):
    """A token, without its secret."""

    id: str
    name: str
    tenant: str
    role: AccessRole
    created: float  # Unix seconds
    expires: float | None = None  # Unix seconds; None: never
    by: str = ""  # who made it


class TokenCreated(TokenView):
    """The answer to a creation: the only time the secret is shown."""

    token: str


class TokenList(View):
    """Tokens that are not revoked, oldest first."""

    tokens: list[TokenView]


class Quota(Strict):
    """Bounds of what a tenant's active jobs may take together; None is no bound."""

    jobs: int | None = Field(default=None, ge=0, le=10**9)
    trainers: int | None = Field(default=None, ge=0, le=10**9)
    memory_bytes: int | None = Field(
        default=None, ge=0, le=10**18, description="Of embedding rows, as a dry run sizes them."
    )


class Usage(View):
    """What a tenant's active jobs take together."""

    jobs: int = 0
    trainers: int = 0
    memory_bytes: int = 0


class TenantView(View):
    """A tenant's bounds, and what it uses of them."""

    tenant: str
    quota: Quota
    usage: Usage


class TenantList(View):
    """Tenants that have jobs, tokens or a quota of their own, by name."""

    tenants: list[TenantView]
