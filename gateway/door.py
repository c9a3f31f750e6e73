"""The door: turns the bearer of a request into an Identity, or refuses it.

A bearer is one of our tokens, the first admin's (whose digest is a setting), or an OpenID Connect
token of the configured issuer. Refusals say nothing to those who don't hold the secret.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Protocol

from gateway.access_config import TOKEN, AccessConfig
from gateway.identity import ANYONE, Identity, digest, token_id
from gateway.tenancy import Tenancy
from services.api.access import ALL_TENANTS, AccessRole
from services.kit.errors import Unauthenticated


class Verifier(Protocol):
    """Somebody else's tokens."""

    def identify(self, token: str) -> Identity:
        """The caller that the token names. Raises Unauthenticated, or Unavailable."""


class Door:
    """Thread-safe; `clock` gives Unix seconds."""

    def __init__(
        self,
        config: AccessConfig,
        tenancy: Tenancy,
        verifier: Verifier | None,
        clock: Callable[[], float],
    ) -> None:
        self._open = config.mode != TOKEN
        self._admin_digest = config.admin_digest
        self._tenancy, self._verifier, self._clock = tenancy, verifier, clock

    def identify(self, bearer: str | None) -> Identity:
        """The caller. Raises Unauthenticated, or Unavailable when that can't be told now."""
        if self._open:
            return ANYONE
        if not bearer:
            raise Unauthenticated("send `Authorization: Bearer TOKEN`")
        found = digest(bearer)
        if self._admin_digest and hmac.compare_digest(found, self._admin_digest):
            return Identity("token:admin", ALL_TENANTS, AccessRole.ADMIN)
        name = token_id(bearer)
        if name is not None:
            return self._known(name, found)
        if self._verifier is not None:
            return self._verifier.identify(bearer)
        raise Unauthenticated("the token is not valid")

    def _known(self, name: str, found: str) -> Identity:
        stored = self._tenancy.find(name)
        if stored is None or not hmac.compare_digest(stored.digest, found):
            raise Unauthenticated("the token is not valid")
        view = stored.view
        if view.expires is not None and view.expires <= self._clock():
            raise Unauthenticated(f"token {view.id} has expired")
        return Identity(f"token:{view.id}", view.tenant, view.role)
