"""What the gateway keeps in Redis about access: tokens (their digests only) and tenants' quotas.

Keys, all under `embermesh:gateway:`:
  token:{id}   JSON of a stored token; goes by itself a day after the token expired
  tokens       set of token ids
  quotas       hash tenant -> JSON of its Quota
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pydantic
import redis

from gateway.store import PREFIX, guard
from services.api.access import Quota, TokenView
from services.kit.errors import NotFound

_KEPT_SECONDS = 86_400  # an expired token is still told from an unknown one
_TOKENS, _QUOTAS = f"{PREFIX}tokens", f"{PREFIX}quotas"


@dataclasses.dataclass(frozen=True)
class StoredToken:
    """A token as it is kept."""

    view: TokenView
    digest: str  # SHA-256 of the token's text, hex


_ADAPTER = pydantic.TypeAdapter(StoredToken)


class Tenancy:
    """Typed access to the keys above. Every method raises Unavailable when Redis is away."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def add(self, token: StoredToken) -> None:
        """Keeps a token until it expires or is revoked."""
        view, text = token.view, _ADAPTER.dump_json(token)
        with guard("store the token"):
            pipe = self._redis.pipeline(transaction=True)
            pipe.set(_token_key(view.id), text)
            if view.expires is not None:
                pipe.expireat(_token_key(view.id), int(view.expires) + _KEPT_SECONDS)
            pipe.sadd(_TOKENS, view.id)
            pipe.execute()

    def find(self, token_id: str) -> StoredToken | None:
        """The token of that id, unless it was revoked or expired long ago."""
        with guard("read the token"):
            text: Any = self._redis.get(_token_key(token_id))
        return None if text is None else _ADAPTER.validate_json(text)

    def tokens(self) -> list[TokenView]:
        """All tokens, oldest first; ids of those that expired are forgotten on the way."""
        with guard("list the tokens"):
            ids: Any = sorted(self._redis.smembers(_TOKENS))
            keys = [_token_key(i.decode()) for i in ids]
            texts: Any = self._redis.mget(keys) if keys else []
            gone = [i for i, text in zip(ids, texts, strict=True) if text is None]
            if gone:
                self._redis.srem(_TOKENS, *gone)
        views = [_ADAPTER.validate_json(text).view for text in texts if text is not None]
        return sorted(views, key=lambda view: (view.created, view.id))

    def revoke(self, token_id: str) -> None:
        """Ends a token at once, at every gateway. Raises NotFound."""
        with guard("revoke the token"):
            pipe = self._redis.pipeline(transaction=True)
            pipe.delete(_token_key(token_id))
            pipe.srem(_TOKENS, token_id)
            found: Any = pipe.execute()
        if not found[0]:
            raise NotFound(f"there is no token {token_id!r}")

    def quota(self, tenant: str) -> Quota | None:
        """The tenant's own quota, if it has one."""
        with guard("read the quota"):
            text: Any = self._redis.hget(_QUOTAS, tenant)
        return None if text is None else Quota.model_validate_json(text)

    def set_quota(self, tenant: str, quota: Quota) -> None:
        """Replaces the tenant's own quota."""
        with guard("store the quota"):
            self._redis.hset(_QUOTAS, tenant, quota.model_dump_json())

    def tenants_with_quota(self) -> list[str]:
        """Names of tenants that have a quota of their own."""
        with guard("list the quotas"):
            names: Any = self._redis.hkeys(_QUOTAS)
        return sorted(name.decode() for name in names)


def _token_key(token_id: str) -> str:
    return f"{PREFIX}token:{token_id}"
