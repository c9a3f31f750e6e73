"""Settings of the door, the rate limiter, and identities."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from gateway import store
from gateway.access_config import AccessConfig
from gateway.audit import Audit
from gateway.identity import ANYONE, Identity, digest, new_token, token_id
from gateway.rate import RateLimiter
from services.api.access import AccessRole
from services.kit import config, telemetry
from services.kit.errors import Forbidden, InvalidInput, TooManyRequests


def test_the_gateway_is_closed_unless_told_otherwise() -> None:
    assert config.load(AccessConfig, {}).mode == "token"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gateway", ""])
def test_open_on_loopback_means_loopback(host: str) -> None:
    with pytest.raises(InvalidInput, match="everybody who reaches that address"):
        AccessConfig(mode="open-loopback").check_host(host)
    for mode in ("token", "open-network"):
        AccessConfig(mode=mode).check_host(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_may_be_open(host: str) -> None:
    AccessConfig(mode="open-loopback").check_host(host)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"mode": "open"}, "EMBERMESH_ACCESS_MODE='open' is not one of"),
        ({"admin_digest": "secret"}, "EMBERMESH_ACCESS_ADMIN_DIGEST is not a SHA-256"),
        ({"oidc_issuer": "https://i"}, "OIDC_AUDIENCE go together"),
        ({"rate_per_second": -1.0}, "RATE_PER_SECOND=-1.0 must be 0 or more"),
        ({"rate_per_second": float("nan")}, "RATE_PER_SECOND=nan"),
        ({"max_body_bytes": 0}, "MAX_BODY_BYTES=0 must be above 0"),
    ],
)
def test_wrong_settings_are_named(fields: dict, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        AccessConfig(**fields)


def test_a_digest_is_never_echoed() -> None:
    with pytest.raises(InvalidInput) as failure:
        AccessConfig(admin_digest="emb_the-token-itself")
    assert "the-token-itself" not in str(failure.value)


def test_tokens_differ_and_name_themselves() -> None:
    made = [new_token() for _ in range(200)]
    assert len({name for name, _ in made}) == len({token for _, token in made}) == 200
    assert all(token_id(token) == name for name, token in made)
    assert token_id("emb_short") is None
    assert len(digest(made[0][1])) == 64


def test_an_identity_acts_at_home() -> None:
    ads = Identity("token:a", "ads", AccessRole.OPERATOR)
    assert (ads.home(), ads.home("ads")) == ("ads", "ads")
    with pytest.raises(Forbidden):
        ads.home("feed")
    assert (ANYONE.home(), ANYONE.home("feed")) == ("default", "feed")
    assert [r for r in AccessRole if AccessRole.OPERATOR.includes(r)] == ["viewer", "operator"]


def test_a_bucket_lets_a_burst_through_and_then_the_rate() -> None:
    now = 100.0
    limiter = RateLimiter(2.0, 3, lambda: now)
    for _ in range(3):
        limiter.take("a")
    with pytest.raises(TooManyRequests) as refused:
        limiter.take("a")
    assert refused.value.retry_after == pytest.approx(0.5)
    limiter.take("b")
    now += 0.5
    limiter.take("a")
    with pytest.raises(TooManyRequests):
        limiter.take("a")
    now += 3600
    for _ in range(3):
        limiter.take("a")
    with pytest.raises(TooManyRequests):
        limiter.take("a")


def test_the_limiter_forgets_who_asked_longest_ago() -> None:
    limiter = RateLimiter(1.0, 1, lambda: 0.0, callers=3)
    for caller in "abcd":
        limiter.take(caller)
    limiter.take("a")
    with pytest.raises(TooManyRequests):
        limiter.take("d")


def test_no_rate_is_no_bound() -> None:
    limiter = RateLimiter(0, 1, lambda: 0.0)
    for _ in range(1000):
        limiter.take("a")


def test_without_a_file_the_audit_log_is_a_field_of_a_log_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = logging.root.handlers[:], logging.root.level
    telemetry.setup_logging("info", service="gateway")
    try:
        scope = {"method": "POST", "path_params": {"job": "a-1"}, "client": ("10.0.0.7", 4)}
        audit = Audit(clock=lambda: 7.0)
        audit.record(scope, "/v1/jobs/{job}:cancel", 202, 0.5)
        audit.record({**scope, "method": "GET"}, "/v1/jobs/{job}", 200, 0.5)
        audit.record(scope, "none", 404, 0.5)
    finally:
        logging.root.handlers, logging.root.level = before
    (line,) = capsys.readouterr().err.splitlines()
    noted = json.loads(line)["audit"]
    assert (noted["what"], noted["on"], noted["status"]) == (
        "POST /v1/jobs/{job}:cancel",
        {"job": "a-1"},
        202,
    )
    assert (noted["time"], noted["from"], noted["who"]) == (7.0, "10.0.0.7", None)


def test_an_audit_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="audit_file"):
        Audit(str(tmp_path / "file" / "log"))


def test_passwords_of_a_redis_url_are_masked() -> None:
    with pytest.raises(InvalidInput) as failure:
        store.connect("http://user:hush@r:6379/0")
    assert "hush" not in str(failure.value)
    assert "r:6379" in str(failure.value)
