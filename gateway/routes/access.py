"""`/v1/me`, `/v1/tokens` and `/v1/tenants`: who may come in, and how much each tenant may use."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from gateway import quotas
from gateway.deps import Admin, Gateway, Parts, Viewer
from gateway.identity import Identity, digest, new_token
from gateway.tenancy import StoredToken
from services.api.access import (
    ALL_TENANTS,
    CallerView,
    Quota,
    TenantList,
    TenantName,
    TenantView,
    TokenCreated,
    TokenList,
    TokenRequest,
    TokenView,
)
from services.kit.errors import Forbidden, NotFound

router = APIRouter(prefix="/v1", tags=["access"])

_DAY = 86_400.0
TokenId = Annotated[str, Path(pattern=r"^[a-z2-7]{10}$")]
Tenant = Annotated[TenantName, Path()]


@router.get("/me")
def me(who: Viewer) -> CallerView:
    """Whom the gateway takes the caller for, and what that one may do."""
    return CallerView(subject=who.subject, tenant=who.tenant, role=who.role)


@router.post("/tokens", status_code=201)
def create_token(
    gateway: Parts, who: Admin, response: Response, body: TokenRequest
) -> TokenCreated:
    """Makes a token; its text is in this answer and nowhere else."""
    tenant = body.tenant or who.tenant
    if tenant != who.tenant and who.tenant != ALL_TENANTS:
        raise Forbidden(f"{who.subject} makes tokens of tenant {who.tenant!r} only")
    name, token = new_token()
    now = gateway.clock()
    token_view = TokenView(
        id=name,
        name=body.name,
        tenant=tenant,
        role=body.role,
        created=now,
        expires=None if body.days is None else now + body.days * _DAY,
        by=who.subject,
    )
    gateway.tenancy.add(StoredToken(token_view, digest(token)))
    response.headers["Cache-Control"] = "no-store"
    return TokenCreated(**token_view.model_dump(), token=token)


@router.get("/tokens")
def list_tokens(gateway: Parts, who: Admin) -> TokenList:
    """Tokens of the caller's tenant, without their secrets."""
    return TokenList(tokens=[t for t in gateway.tenancy.tokens() if who.sees(t.tenant)])


@router.delete("/tokens/{token}", status_code=204)
def revoke_token(gateway: Parts, who: Admin, token: TokenId) -> None:
    """Ends a token at once."""
    stored = gateway.tenancy.find(token)
    if stored is None or not who.sees(stored.view.tenant):
        raise NotFound(f"there is no token {token!r}")
    gateway.tenancy.revoke(token)


@router.get("/tenants")
def list_tenants(gateway: Parts, who: Viewer) -> TenantList:
    """Tenants the caller may see, with what they use."""
    names = {who.tenant} - {ALL_TENANTS}
    if who.tenant == ALL_TENANTS:
        names |= {*gateway.store.tenants(), *gateway.tenancy.tenants_with_quota()}
        names |= {token.tenant for token in gateway.tenancy.tokens()} - {ALL_TENANTS}
    return TenantList(tenants=[_tenant(gateway, name) for name in sorted(names)])


@router.get("/tenants/{tenant}")
def get_tenant(gateway: Parts, who: Viewer, tenant: Tenant) -> TenantView:
    """A tenant's quota and what it uses of it."""
    _check_seen(who, tenant)
    return _tenant(gateway, tenant)


@router.put("/tenants/{tenant}/quota")
def set_quota(gateway: Parts, who: Admin, tenant: Tenant, body: Quota) -> TenantView:
    """Replaces a tenant's quota; jobs that run stay. Needs an admin of all tenants."""
    if who.tenant != ALL_TENANTS:
        raise Forbidden(f"{who.subject} is admin of {who.tenant!r}; quotas need one of all tenants")
    gateway.tenancy.set_quota(tenant, body)
    return _tenant(gateway, tenant)


def _check_seen(who: Identity, tenant: str) -> None:
    if not who.sees(tenant):
        raise NotFound(f"there is no tenant {tenant!r}")


def _tenant(gateway: Gateway, tenant: str) -> TenantView:
    return TenantView(
        tenant=tenant,
        quota=gateway.tenancy.quota(tenant) or gateway.access.quota,
        usage=quotas.used(gateway.store.active(tenant)),
    )
