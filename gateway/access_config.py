"""Settings of the gateway's door: who may come in, and how much they may ask."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from typing import ClassVar

from services.api.access import Quota
from services.kit.errors import InvalidInput

TOKEN, OPEN_LOOPBACK, OPEN_NETWORK = "token", "open-loopback", "open-network"
MODES = (TOKEN, OPEN_LOOPBACK, OPEN_NETWORK)
_GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class AccessConfig:
    """Closed by default: without a token nobody gets past /healthz, /readyz and /metrics.

    `open-loopback` takes everybody on this machine for an admin and is refused on any other
    interface; `open-network` takes everybody who reaches the port for one.
    """

    PREFIX: ClassVar[str] = "EMBERMESH_ACCESS_"
    mode: str = TOKEN  # token, open-loopback or open-network
    admin_digest: str = ""  # SHA-256 (hex) of the first admin's token: `embermesh token generate`
    oidc_issuer: str = ""  # https://…; empty = no OpenID Connect
    oidc_audience: str = ""  # `aud` a bearer must carry; needed with oidc_issuer
    oidc_jwks_url: str = ""  # default: as the issuer's discovery document says
    oidc_tenant_claim: str = "tenant"
    oidc_role_claim: str = "role"
    rate_per_second: float = 50.0  # requests of one caller; 0 = no bound
    rate_burst: int = 200  # requests one caller may make at once
    max_body_bytes: int = 1 << 18
    cors_origins: str = ""  # comma-separated origins of other sites' pages; empty = none
    audit_file: str = ""  # appended to; empty = with the other logs
    quota_jobs: int = 0  # of a tenant without a quota of its own; 0 = no bound
    quota_trainers: int = 0
    quota_memory_gib: float = 0.0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidInput(f"{self._name('mode')}={self.mode!r} is not one of {MODES}")
        if self.admin_digest and not re.fullmatch(r"[0-9a-f]{64}", self.admin_digest):
            raise InvalidInput(f"{self._name('admin_digest')} is not a SHA-256 in hex")
        if bool(self.oidc_issuer) != bool(self.oidc_audience):
            raise InvalidInput(
                f"{self._name('oidc_issuer')} and {self._name('oidc_audience')} go together"
            )
        for field in ("rate_per_second", "quota_jobs", "quota_trainers", "quota_memory_gib"):
            if not getattr(self, field) >= 0:
                raise InvalidInput(f"{self._name(field)}={getattr(self, field)} must be 0 or more")
        for field in ("rate_burst", "max_body_bytes"):
            if getattr(self, field) < 1:
                raise InvalidInput(f"{self._name(field)}={getattr(self, field)} must be above 0")

    def check_host(self, host: str) -> None:
        """Raises InvalidInput when the gateway would be open beyond this machine unasked."""
        if self.mode == OPEN_LOOPBACK and not _is_loopback(host):
            raise InvalidInput(
                f"{self._name('mode')}={OPEN_LOOPBACK} with host {host!r}: everybody who reaches "
                f"that address could run jobs; use {TOKEN}, or {OPEN_NETWORK} to mean it"
            )

    @property
    def quota(self) -> Quota:
        """Bounds of a tenant that has none of its own."""
        return Quota(
            jobs=self.quota_jobs or None,
            trainers=self.quota_trainers or None,
            memory_bytes=int(self.quota_memory_gib * _GIB) or None,
        )

    @property
    def origins(self) -> list[str]:
        """cors_origins as a list."""
        return [origin.strip() for origin in self.cors_origins.split(",") if origin.strip()]

    def _name(self, field: str) -> str:
        return self.PREFIX + field.upper()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
