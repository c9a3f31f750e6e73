"""Tokens, tenants and quotas for programs: what `Client` is for jobs. Needs an admin's token."""

from __future__ import annotations

from urllib.parse import quote

from embermesh.client import Client
from services.api.access import (
    AccessRole,
    Quota,
    TenantList,
    TenantView,
    TokenCreated,
    TokenList,
    TokenRequest,
    TokenView,
)


class Access:
    """Works through `client`; raises what that raises."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create_token(
        self,
        name: str,
        role: AccessRole = AccessRole.VIEWER,
        *,
        tenant: str | None = None,
        days: float | None = None,
    ) -> TokenCreated:
        """Makes a token of `tenant` (default: the caller's own) that ends after `days`; its text is
        in the answer and can't be had again.
        """
        body = TokenRequest(name=name, role=role, tenant=tenant, days=days).model_dump(mode="json")
        return self._client.view(TokenCreated, "POST", "/v1/tokens", json=body)

    def tokens(self) -> list[TokenView]:
        """Tokens of the caller's tenant, without their secrets, oldest first."""
        return self._client.view(TokenList, "GET", "/v1/tokens").tokens

    def revoke_token(self, token_id: str) -> None:
        """Ends a token at once."""
        self._client.request("DELETE", f"/v1/tokens/{quote(token_id, safe='')}")

    def tenants(self) -> list[TenantView]:
        """Tenants the caller may see: quota and usage, by name."""
        return self._client.view(TenantList, "GET", "/v1/tenants").tenants

    def set_quota(self, tenant: str, quota: Quota) -> TenantView:
        """Replaces a tenant's quota."""
        path = f"/v1/tenants/{quote(tenant, safe='')}/quota"
        return self._client.view(TenantView, "PUT", path, json=quota.model_dump())
