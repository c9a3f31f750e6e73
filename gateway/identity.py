"""Who asks. An Identity is what every route gets; how it was proven is `gateway.door`'s business.

A token is `emb_<id>_<secret>`: 10 letters that name it and 256 random bits. Only the SHA-256 of the
whole text is ever kept; that many random bits need no slow hash.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
import secrets

from services.api.access import ALL_TENANTS, DEFAULT_TENANT, AccessRole
from services.kit.errors import Forbidden

_TOKEN = re.compile(r"emb_([a-z2-7]{10})_([A-Za-z0-9_-]{43})")


@dataclasses.dataclass(frozen=True)
class Identity:
    """A caller: `subject` names it in the audit log, `tenant` is the one it acts in (* = all)."""

    subject: str
    tenant: str
    role: AccessRole

    def sees(self, tenant: str) -> bool:
        """Whether that tenant's things exist for this caller."""
        return self.tenant in (ALL_TENANTS, tenant)

    def home(self, wanted: str | None = None) -> str:
        """The tenant in which it makes new things. Raises Forbidden for another's."""
        own = DEFAULT_TENANT if self.tenant == ALL_TENANTS else self.tenant
        if wanted is not None and not self.sees(wanted):
            raise Forbidden(f"{self.subject} acts in tenant {self.tenant!r}, not in {wanted!r}")
        return own if wanted is None else wanted


ANYONE = Identity("anyone", ALL_TENANTS, AccessRole.ADMIN)


def new_token() -> tuple[str, str]:
    """(id, token) from the system's random source."""
    name = base64.b32encode(secrets.token_bytes(7)).decode().lower()[:10]
    return name, f"emb_{name}_{secrets.token_urlsafe(32)}"


def token_id(token: str) -> str | None:
    """The id in the token, None for a text that is none of ours."""
    match = _TOKEN.fullmatch(token)
    return match[1] if match else None


def digest(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()
