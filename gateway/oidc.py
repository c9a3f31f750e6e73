"""OpenID Connect bearers: an identity provider's signed tokens as callers of ours.

Checked are signature (asymmetric algorithms only), `iss`, `aud`, `exp`, and `nbf` and `iat` where
they are there, with a minute's allowance for clocks that differ. The claim for the tenant and that
for the role must be there and make sense: a token that says nothing of them opens nothing.

The issuer's keys are kept for ten minutes. A token signed with a key that is not among them has
them fetched at once, though at most every ten seconds, so that neither a rotation nor a flood of
invented key ids hurts. While the issuer is away its last keys are used for up to a day.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import threading
from collections.abc import Callable
from typing import Any

import httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from gateway.access_config import AccessConfig
from gateway.identity import Identity
from services.api.access import NAME, AccessRole
from services.kit.errors import InvalidInput, Unauthenticated, Unavailable

log = logging.getLogger(__name__)

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]
_FRESH_SECONDS = 600.0
_PAUSE_SECONDS = 10.0
_STALE_SECONDS = 86_400.0
_LEEWAY_SECONDS = 60
_FETCH_SECONDS = 5.0
_MOST_BYTES = 1 << 20
_LONGEST_TOKEN = 16_384

Fetch = Callable[[str], bytes]
"""The body at a URL. Raises Unavailable."""


def fetch(url: str) -> bytes:
    """GET `url` without following redirects; the answer is bounded in time and size."""
    try:
        with httpx.stream("GET", url, timeout=_FETCH_SECONDS) as answer:
            answer.raise_for_status()
            body = b""
            for part in answer.iter_bytes():
                body += part
                if len(body) > _MOST_BYTES:
                    raise Unavailable(f"{url}: the answer is larger than {_MOST_BYTES} bytes")
            return body
    except httpx.HTTPError as error:
        raise Unavailable(f"{url}: {error}") from error


class Keys:
    """The issuer's public keys, as its key document says them. Thread-safe.

    `clock` gives seconds that never go back.
    """

    def __init__(self, issuer: str, jwks_url: str, clock: Callable[[], float], get: Fetch) -> None:
        self._issuer, self._url, self._clock, self._get = issuer, jwks_url, clock, get
        self._lock = threading.Lock()  # guards all below; held while fetching: one fetch at a time
        self._keys: KeySet | None = None
        self._fetched = self._tried = -_STALE_SECONDS

    def find(self, key_id: str | None) -> KeySet:
        """The present keys, `key_id` among them if the issuer has it. Raises Unavailable."""
        with self._lock:
            now = self._clock()
            fresh = now - self._fetched < _FRESH_SECONDS
            if self._keys is not None and fresh and _has(self._keys, key_id):
                return self._keys
            if now - self._tried >= _PAUSE_SECONDS:
                self._tried = now
                self._renew(now)
            if self._keys is None or now - self._fetched > _STALE_SECONDS:
                raise Unavailable(f"the keys of {self._issuer} can't be had now")
            return self._keys

    def _renew(self, now: float) -> None:
        try:
            url = self._url or self._discover()
            # Others are for encryption, or of kinds that nobody here knows; one must not cost all.
            signing = [
                key
                for key in json.loads(self._get(url))["keys"]
                if key.get("kty") in ("RSA", "EC") and key.get("use", "sig") == "sig"
            ]
            self._keys = KeySet.import_key_set({"keys": signing})
            self._fetched = now
        except (Unavailable, JoseError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("keys of %s not renewed: %s: %s", self._issuer, type(error).__name__, error)

    def _discover(self) -> str:
        base = self._issuer.rstrip("/")
        document = json.loads(self._get(f"{base}/.well-known/openid-configuration"))
        if document["issuer"] != self._issuer:
            raise ValueError(f"its discovery document is of {document['issuer']!r}")
        return str(document["jwks_uri"])


class OidcVerifier:
    """Turns a token of the configured issuer into an Identity. `now` gives Unix seconds."""

    def __init__(self, settings: AccessConfig, keys: Keys, now: Callable[[], float]) -> None:
        for name in ("oidc_issuer", "oidc_jwks_url"):
            url = getattr(settings, name)
            if url and not re.match(r"https://|http://(localhost|127\.0\.0\.1|\[::1\])[:/]", url):
                raise InvalidInput(f"{settings.PREFIX}{name.upper()}={url!r} must be https://")
        self._settings, self._keys, self._now = settings, keys, now

    def identify(self, token: str) -> Identity:
        """The caller. Raises Unauthenticated, and Unavailable when the keys can't be had."""
        claims = self._verified(token)
        subject = claims.get("sub")
        if not isinstance(subject, str) or not 0 < len(subject) <= 255:
            raise Unauthenticated("the token's claim 'sub' names nobody")
        return Identity(f"oidc:{subject}", self._tenant(claims), self._role(claims))

    def _verified(self, token: str) -> dict[str, Any]:
        if len(token) > _LONGEST_TOKEN or token.count(".") != 2:
            raise Unauthenticated("the token is not valid")
        checks = jwt.JWTClaimsRegistry(
            now=lambda: int(self._now()),
            leeway=_LEEWAY_SECONDS,
            iss={"essential": True, "value": self._settings.oidc_issuer},
            aud={"essential": True, "value": self._settings.oidc_audience},
            exp={"essential": True},
        )
        try:
            keys = self._keys.find(_key_id(token))
            claims = jwt.decode(token, keys, algorithms=ALGORITHMS).claims
            checks.validate(claims)
        except (JoseError, ValueError, KeyError, TypeError) as error:
            # The reason helps an honest caller and tells an attacker what the token says itself.
            raise Unauthenticated(f"the token is not valid: {type(error).__name__}") from error
        return dict(claims)

    def _tenant(self, claims: dict[str, Any]) -> str:
        name = self._settings.oidc_tenant_claim
        tenant = claims.get(name)
        # Nobody becomes an admin of all tenants by a claim: `*` is no name.
        if not isinstance(tenant, str) or not re.fullmatch(NAME, tenant):
            raise Unauthenticated(f"the token's claim {name!r} names no tenant")
        return tenant

    def _role(self, claims: dict[str, Any]) -> AccessRole:
        """The highest role that the claim, a text or a list of texts, names."""
        name = self._settings.oidc_role_claim
        given = claims.get(name)
        named = given if isinstance(given, list) else [given]
        roles = [role for role in AccessRole if str(role) in named]
        if not roles:
            raise Unauthenticated(f"the token's claim {name!r} names no role")
        return roles[-1]


def _key_id(token: str) -> str | None:
    text = token.split(".", 1)[0]
    header = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    found = header.get("kid") if isinstance(header, dict) else None
    return found if isinstance(found, str) else None


def _has(keys: KeySet, key_id: str | None) -> bool:
    return key_id is None or any(key.kid == key_id for key in keys.keys)
