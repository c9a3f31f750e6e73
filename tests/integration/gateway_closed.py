"""A gateway that wants tokens, for tests of what it lets whom do."""

from __future__ import annotations

from typing import Any

from embermesh.access import Access
from embermesh.client import Client
from gateway.access_config import AccessConfig
from gateway.identity import digest, new_token
from services.api.access import AccessRole
from tests.integration.gateway_harness import Harness

ADMIN = new_token()[1]
CLOSED = AccessConfig(admin_digest=digest(ADMIN), rate_per_second=0)


def admin_of(harness: Harness) -> Client:
    """A client with the first admin's token."""
    return Client(str(harness.http.base_url), token=ADMIN)


def holder(harness: Harness, admin: Client, role: str, tenant: str, **more: Any) -> Client:
    """A client with a fresh token."""
    made = Access(admin).create_token("test", AccessRole(role), tenant=tenant, **more)
    return Client(str(harness.http.base_url), token=made.token)
