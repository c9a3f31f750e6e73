"""OpenID Connect tokens, made with real keys: which open the door, and when keys are fetched."""

from __future__ import annotations

import base64
import hmac
import http.server
import json
import threading
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

from gateway.access_config import AccessConfig
from gateway.identity import Identity
from gateway.oidc import Keys, OidcVerifier, fetch
from services.api.access import AccessRole
from services.kit.errors import InvalidInput, Unauthenticated, Unavailable

ISSUER, AUDIENCE = "https://id.example", "embermesh"
SHARED = "a secret of both sides"
NOW = 1_800_000_000
SETTINGS = AccessConfig(oidc_issuer=ISSUER, oidc_audience=AUDIENCE)
CLAIMS = {
    "iss": ISSUER,
    "aud": AUDIENCE,
    "exp": NOW + 300,
    "sub": "alice",
    "tenant": "ads",
    "role": ["operator", "viewer", "staff"],
}


class Provider:
    """An identity provider: its keys, its documents, and how often it was asked."""

    def __init__(self) -> None:
        self.rsa = RSAKey.generate_key(2048, {"kid": "r1", "use": "sig"})
        self.ec = ECKey.generate_key("P-256", {"kid": "e1"})
        self.keys: list[Any] = [self.rsa, self.ec]
        self.asked: list[str] = []
        self.away = False
        self.clock = 1000.0
        self.keyring = Keys(ISSUER, "", lambda: self.clock, self.get)
        self.verifier = OidcVerifier(SETTINGS, self.keyring, lambda: NOW)

    def get(self, url: str) -> bytes:
        self.asked.append(url)
        if self.away:
            raise Unavailable(f"{url}: away")
        if url == f"{ISSUER}/.well-known/openid-configuration":
            return json.dumps({"issuer": ISSUER, "jwks_uri": "https://id.example/keys"}).encode()
        assert url == "https://id.example/keys"
        keys = [key.as_dict(private=False) for key in self.keys]
        other = [
            {"kty": "new-kind", "kid": "n"},
            {"kty": "oct", "k": OctKey.import_key(SHARED).as_dict()["k"], "kid": "o"},
        ]
        return json.dumps({"keys": [*other, *keys]}).encode()

    def token(self, key: Any = None, alg: str = "RS256", **changes: Any) -> str:
        key = key or self.rsa
        claims = {k: v for k, v in {**CLAIMS, **changes}.items() if v is not None}
        return jwt.encode({"alg": alg, "kid": key.kid}, claims, key, algorithms=[alg])

    def fetches(self) -> int:
        return sum(url.endswith("/keys") for url in self.asked)


def encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


@pytest.fixture
def provider() -> Provider:
    return Provider()


def test_a_token_of_the_issuer_names_its_caller(provider: Provider) -> None:
    expected = Identity("oidc:alice", "ads", AccessRole.OPERATOR)
    assert provider.verifier.identify(provider.token()) == expected
    assert provider.verifier.identify(provider.token(provider.ec, "ES256")) == expected
    assert provider.verifier.identify(provider.token(aud=["other", AUDIENCE])) == expected
    viewer = provider.verifier.identify(provider.token(role="viewer"))
    assert viewer.role == AccessRole.VIEWER
    assert provider.fetches() == 1


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"exp": NOW - 61}, "ExpiredTokenError"),
        ({"exp": None}, "MissingClaimError"),
        ({"exp": "soon"}, "InvalidClaimError"),
        ({"nbf": NOW + 61}, "InvalidTokenError|InvalidClaimError"),
        ({"aud": "other"}, "InvalidClaimError"),
        ({"aud": None}, "MissingClaimError"),
        ({"iss": "https://evil.example"}, "InvalidClaimError"),
        ({"iss": f"{ISSUER}/"}, "InvalidClaimError"),
        ({"sub": None}, "'sub' names nobody"),
        ({"sub": ""}, "'sub' names nobody"),
        ({"sub": 7}, "InvalidClaimError"),
        ({"tenant": None}, "'tenant' names no tenant"),
        ({"tenant": "*"}, "'tenant' names no tenant"),
        ({"tenant": ["ads"]}, "'tenant' names no tenant"),
        ({"role": None}, "'role' names no role"),
        ({"role": "root"}, "'role' names no role"),
        ({"role": {"admin": True}}, "'role' names no role"),
    ],
)
def test_a_token_with_wrong_claims_is_refused(
    provider: Provider, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(Unauthenticated, match=text):
        provider.verifier.identify(provider.token(**changes))


def test_clocks_may_differ_by_a_minute(provider: Provider) -> None:
    who = provider.verifier.identify(provider.token(exp=NOW - 30, nbf=NOW + 30))
    assert who.subject == "oidc:alice"


def test_only_the_issuers_asymmetric_keys_count(provider: Provider) -> None:
    forged = RSAKey.generate_key(2048, {"kid": "r1"})
    unsigned = f"{encoded({'alg': 'none', 'kid': 'r1'})}.{encoded(CLAIMS)}."
    confused = f"{encoded({'alg': 'HS256', 'kid': 'r1'})}.{encoded(CLAIMS)}"
    public = provider.rsa.as_pem(private=False)
    tag = base64.urlsafe_b64encode(hmac.digest(public, confused.encode(), "sha256"))
    good = provider.token()
    for token in (
        provider.token(forged),
        f"{confused}.{tag.decode().rstrip('=')}",
        provider.token(OctKey.import_key(SHARED, {"kid": "o"}), "HS256"),
        unsigned,
        good[:-4] + "AAAA",
        good.rsplit(".", 1)[0],
        "a.b.c",
        "..",
        "é.é.é",
        f"{good}{'x' * 20_000}",
    ):
        with pytest.raises(Unauthenticated):
            provider.verifier.identify(token)


def test_a_rotated_key_is_fetched_when_it_is_first_seen(provider: Provider) -> None:
    provider.verifier.identify(provider.token())
    provider.clock += 20
    new = RSAKey.generate_key(2048, {"kid": "r2"})
    provider.keys = [new]
    assert provider.verifier.identify(provider.token(new)).subject == "oidc:alice"
    assert provider.fetches() == 2
    with pytest.raises(Unauthenticated):  # the issuer doesn't vouch for the old one any more
        provider.verifier.identify(provider.token())


def test_a_key_that_was_withdrawn_ends_within_ten_minutes(provider: Provider) -> None:
    old = provider.token()
    provider.verifier.identify(old)
    provider.keys = [provider.ec]
    provider.clock += 599
    provider.verifier.identify(old)
    provider.clock += 2
    with pytest.raises(Unauthenticated):
        provider.verifier.identify(old)


def test_invented_keys_do_not_flood_the_issuer(provider: Provider) -> None:
    for number in range(50):
        invented = ECKey.generate_key("P-256", {"kid": f"x{number}"})
        provider.clock += 0.1
        with pytest.raises(Unauthenticated):
            provider.verifier.identify(provider.token(invented, "ES256"))
    assert provider.fetches() == 1


def test_an_issuer_that_is_away_costs_nothing_for_a_day(provider: Provider) -> None:
    provider.away = True
    with pytest.raises(Unavailable, match="can't be had now"):
        provider.verifier.identify(provider.token())
    provider.away = False
    provider.clock += 11
    provider.verifier.identify(provider.token())
    provider.away = True
    provider.clock += 80_000
    provider.verifier.identify(provider.token())
    provider.clock += 10_000
    with pytest.raises(Unavailable):
        provider.verifier.identify(provider.token())


@pytest.mark.parametrize("url", ["http://id.example", "ftp://id.example", "id.example"])
def test_keys_come_over_https_only(provider: Provider, url: str) -> None:
    settings = AccessConfig(oidc_issuer=url, oidc_audience="a")
    with pytest.raises(InvalidInput, match="must be https://"):
        OidcVerifier(settings, provider.keyring, lambda: NOW)


def test_an_answer_is_bounded_and_redirects_are_not_followed() -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302 if self.path == "/away" else 200)
            self.send_header("Location", "/large")
            self.end_headers()
            self.wfile.write(b"x" * (2 << 20 if self.path == "/large" else 3))

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        assert fetch(f"{base}/small") == b"xxx"
        for path in ("/large", "/away"):
            with pytest.raises(Unavailable):
                fetch(f"{base}{path}")
        server.shutdown()
    with pytest.raises(Unavailable):
        fetch(f"{base}/small")
