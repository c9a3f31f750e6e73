"""Tokens, roles, tenants and quotas over real HTTP and Redis: a gateway closed by default."""

from __future__ import annotations

import http.server
import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from joserfc import jwt
from joserfc.jwk import ECKey

from embermesh.access import Access
from embermesh.client import Client
from gateway.access_config import AccessConfig
from gateway.identity import digest, new_token
from services.api.access import ALL_TENANTS, AccessRole, Quota
from services.kit.errors import Forbidden, InvalidInput, NotFound, QuotaExceeded, Unauthenticated
from tests.integration.gateway_harness import SPEC, Harness, problem, running_gateway, wait_for

ADMIN = new_token()[1]
OPEN_PATHS = {"/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/redoc"}
CLOSED = AccessConfig(admin_digest=digest(ADMIN), rate_per_second=0)


@pytest.fixture
def harness(redis_db: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[Harness]:
    with running_gateway(redis_url, tmp_path, CLOSED) as harness:
        yield harness


@pytest.fixture
def admin(harness: Harness) -> Iterator[Client]:
    with Client(str(harness.http.base_url), token=ADMIN) as client:
        yield client


def holder(harness: Harness, admin: Client, role: str, tenant: str, **more: Any) -> Client:
    """A client with a fresh token."""
    made = Access(admin).create_token("test", AccessRole(role), tenant=tenant, **more)
    return Client(str(harness.http.base_url), token=made.token)


def routes(harness: Harness) -> list[tuple[str, str]]:
    """(method, path with its parameters filled) of every operation."""
    document = harness.http.get("/openapi.json").json()
    return [
        (method.upper(), path.replace("{job}", "x").replace("{token}", "a" * 10))
        for path, operations in document["paths"].items()
        for method in operations
    ]


# ---- authentication


def test_every_route_is_closed_without_a_token(harness: Harness) -> None:
    asked = 0
    for method, path in routes(harness):
        path = path.replace("{tenant}", "ads")
        answer = harness.http.request(method, path)
        if path in OPEN_PATHS:
            assert answer.is_success, path
            continue
        problem(answer, 401)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        asked += 1
    assert asked >= 16


@pytest.mark.parametrize(
    "header",
    [
        "Bearer wrong",
        f"Bearer {new_token()[1]}",
        f"Bearer {ADMIN[:-1]}",
        f"Basic {ADMIN}",
        "Bearer",
        "Bearer " + "x" * 5_000,
    ],
)
def test_a_wrong_token_is_refused(harness: Harness, header: str) -> None:
    answer = harness.http.get("/v1/jobs", headers={"Authorization": header})
    assert ADMIN not in problem(answer, 401).detail


def test_a_token_works_until_it_is_revoked(harness: Harness, admin: Client) -> None:
    access = Access(admin)
    made = access.create_token("ci", AccessRole.OPERATOR, tenant="ads")
    with Client(str(harness.http.base_url), token=made.token) as client:
        assert client.submit(SPEC).tenant == "ads"
        assert [t.id for t in access.tokens()] == [made.id]
        access.revoke_token(made.id)
        with pytest.raises(Unauthenticated):
            client.jobs()
    assert access.tokens() == []
    with pytest.raises(NotFound):
        access.revoke_token(made.id)


def test_an_expired_token_says_so(
    harness: Harness, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holder(harness, admin, "viewer", "ads", days=1) as client:
        assert client.jobs() == []
        later = time.time() + 86_401
        monkeypatch.setattr(harness.gateway.door, "_clock", lambda: later)
        with pytest.raises(Unauthenticated, match="has expired"):
            client.jobs()


def test_no_secret_is_kept_or_logged(
    harness: Harness, admin: Client, redis_db: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    made = Access(admin).create_token("ci", AccessRole.OPERATOR, tenant="ads")
    with Client(str(harness.http.base_url), token=made.token) as client:
        client.submit(SPEC)
        with pytest.raises(Forbidden):
            Access(client).tokens()
    secret = made.token.rsplit("_", 1)[1]
    kept = b"".join(redis_db.dump(key) or b"" for key in redis_db.keys("*"))
    assert made.id.encode() in kept
    for text in (secret, ADMIN):
        assert text.encode() not in kept
        assert text not in caplog.text


# ---- roles and tenants


def test_each_role_may_do_what_it_says(harness: Harness, admin: Client) -> None:
    with (
        holder(harness, admin, "viewer", "ads") as viewer,
        holder(harness, admin, "operator", "ads") as operator,
        holder(harness, admin, "admin", "ads") as tenant_admin,
    ):
        with pytest.raises(Forbidden, match="is viewer; this needs operator"):
            viewer.submit(SPEC)
        job = operator.submit(SPEC).id
        assert viewer.get(job).id == job
        for change in (viewer.cancel, viewer.checkpoint):
            with pytest.raises(Forbidden):
                change(job)
        with pytest.raises(Forbidden, match="this needs admin"):
            Access(operator).create_token("more")
        assert Access(tenant_admin).create_token("more").tenant == "ads"
        for tenant in ("feed", ALL_TENANTS):
            with pytest.raises(Forbidden, match="of tenant 'ads' only"):
                Access(tenant_admin).create_token("more", tenant=tenant)
        with pytest.raises(Forbidden, match="one of all tenants"):
            Access(tenant_admin).set_quota("ads", Quota())


def test_another_tenants_job_does_not_exist(harness: Harness, admin: Client) -> None:
    with (
        holder(harness, admin, "admin", "ads") as ads,
        holder(harness, admin, "admin", "feed") as feed,
    ):
        job = ads.submit(SPEC, idempotency_key="k").id
        harness_view = admin.get(job)
        assert harness_view.tenant == "ads"
        missing = "there is no job"
        for path in ("", "/checkpoints", "/events", "/logs", "/stream"):
            with pytest.raises(NotFound, match=missing):
                feed.request("GET", f"/v1/jobs/{job}{path}")
        for verb in ("cancel", "checkpoint", "restore", "scale"):
            with pytest.raises(NotFound, match=missing):
                feed.request("POST", f"/v1/jobs/{job}:{verb}", json={"trainers": 3})
        assert feed.jobs() == []
        assert [j.id for j in ads.jobs()] == [j.id for j in admin.jobs()] == [job]
        # The same key of another tenant is another key.
        assert feed.submit(SPEC, idempotency_key="k").id != job
        with pytest.raises(InvalidInput, match="names no page"):
            feed.request("GET", "/v1/jobs", params={"cursor": job})
        with pytest.raises(Forbidden):
            feed.request("POST", "/v1/jobs?tenant=ads", json=SPEC)
        (made,) = [t for t in Access(admin).tokens() if t.tenant == "ads"]
        with pytest.raises(NotFound):
            Access(feed).revoke_token(made.id)
        with pytest.raises(NotFound):
            feed.request("GET", "/v1/tenants/ads")
        groups = feed.request("GET", "/v1/services/prometheus").json()
        assert job not in {group["labels"]["job"] for group in groups}


def test_another_tenants_checkpoint_can_not_be_restored(harness: Harness, admin: Client) -> None:
    with (
        holder(harness, admin, "operator", "ads") as ads,
        holder(harness, admin, "operator", "feed") as feed,
    ):
        theirs, own = ads.submit(harness.spec).id, feed.submit(harness.spec).id
        harness.http.headers["Authorization"] = f"Bearer {ADMIN}"
        for job in (theirs, own):
            harness.wait(job, "running")
        uri = ads.checkpoint(theirs).uri
        with pytest.raises(NotFound, match="there is no checkpoint"):
            feed.restore(own, checkpoint=uri)
        assert ads.restore(theirs, checkpoint=uri).id == theirs


def test_prometheus_sees_the_processes_of_who_asks(harness: Harness, admin: Client) -> None:
    with holder(harness, admin, "operator", "ads") as ads:
        job = ads.submit(SPEC).id
        wait_for(lambda: ads.get(job).state == "running")
        for client in (ads, admin):
            groups = client.request("GET", "/v1/services/prometheus").json()
            assert {g["labels"]["job"] for g in groups} == {job}


# ---- quotas


def test_a_quota_bounds_jobs_and_trainers(harness: Harness, admin: Client) -> None:
    access = Access(admin)
    access.set_quota("ads", Quota(jobs=2, trainers=5))
    with holder(harness, admin, "operator", "ads") as ads:
        job = ads.submit(harness.spec).id
        wait_for(lambda: ads.get(job).state == "running")
        assert ads.scale(job, trainers=3).id == job
        with pytest.raises(Forbidden, match="trainers: tenant 'ads' would use 6; its quota is 5"):
            ads.submit({**SPEC, "resources": {"trainers": 3}})
        size = ads.size({**SPEC, "resources": {"trainers": 3}})
        assert (size.admitted, len(size.shortages)) == (False, 1)
        second = ads.submit(harness.spec).id
        with pytest.raises(Forbidden, match="jobs: tenant 'ads' would use 3; its quota is 2"):
            ads.submit({**SPEC, "resources": {"trainers": 1}})
        wait_for(lambda: ads.get(second).state == "running")
        ads.checkpoint(second)
        ads.cancel(second)
        wait_for(lambda: ads.get(second).state == "cancelled")
        # What ended takes nothing; its restore would.
        access.set_quota("ads", Quota(jobs=1))
        with pytest.raises(Forbidden, match="jobs: tenant 'ads' would use 2; its quota is 1"):
            ads.restore(second)
        # A lowered quota stops nothing that runs, and what shrinks has room.
        access.set_quota("ads", Quota(jobs=0, trainers=0))
        wait_for(lambda: ads.get(job).spec["resources"]["trainers"] == 3)
        wait_for(lambda: ads.get(job).state == "running")
        assert ads.scale(job, trainers=1).id == job
        with pytest.raises(Forbidden, match="trainers: tenant 'ads' would use 9"):
            ads.scale(job, trainers=9)
    (view,) = [t for t in access.tenants() if t.tenant == "ads"]
    assert view.usage.jobs == 1


def test_a_quota_bounds_memory_as_a_dry_run_sizes_it(harness: Harness, admin: Client) -> None:
    needed = admin.size(SPEC).memory_bytes
    Access(admin).set_quota("ads", Quota(memory_bytes=needed))
    with holder(harness, admin, "operator", "ads") as ads:
        assert ads.size(SPEC).admitted
        wider = {**SPEC, "features": {"sparse": {"C1..C3": {"dim": 5}}}}
        with pytest.raises(Forbidden, match="memory_bytes"):
            ads.submit(wider)
        assert ads.submit(SPEC).tenant == "ads"


def test_the_default_quota_is_a_setting(
    redis_db: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    access = AccessConfig(admin_digest=digest(ADMIN), quota_jobs=1)
    with (
        running_gateway(redis_url, tmp_path, access) as harness,
        Client(str(harness.http.base_url), token=ADMIN) as admin,
    ):
        admin.submit(SPEC)
        with pytest.raises(Forbidden, match="jobs: tenant 'default' would use 2"):
            admin.submit(SPEC)
        answer = admin.request("POST", "/v1/jobs?tenant=other", json=SPEC)
        assert answer.json()["tenant"] == "other"


def test_submissions_at_the_same_time_do_not_slip_past_a_quota(
    harness: Harness, admin: Client
) -> None:
    Access(admin).set_quota("ads", Quota(jobs=3))
    outcomes: list[str] = []

    def submit() -> None:
        headers = {"Authorization": f"Bearer {ADMIN}"}
        url = f"{harness.http.base_url}/v1/jobs?tenant=ads"
        answer = httpx.post(url, json=SPEC, headers=headers, timeout=30, trust_env=False)
        outcomes.append(answer.json().get("title", "made"))

    threads = [threading.Thread(target=submit) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [QuotaExceeded.__name__] * 7 + ["made"] * 3


# ---- rate, size, audit, CORS


def test_who_asks_too_often_waits_and_others_do_not(
    redis_db: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    access = AccessConfig(admin_digest=digest(ADMIN), rate_per_second=0.1, rate_burst=4)
    with (
        running_gateway(redis_url, tmp_path, access) as harness,
        Client(str(harness.http.base_url), token=ADMIN) as admin,
        holder(harness, admin, "viewer", "ads") as viewer,
    ):
        for _ in range(4):
            viewer.jobs()
        bearer = {"Authorization": viewer._http.headers["Authorization"]}
        answer = harness.http.get("/v1/jobs", headers=bearer)
        assert "more than 0.1 times a second" in problem(answer, 429).detail
        assert 1 <= int(answer.headers["retry-after"]) <= 10
        assert admin.jobs() == []
        # Guesses count against the address they come from, and never against who has a token.
        codes = [harness.http.get("/v1/jobs").status_code for _ in range(6)]
        assert codes == [401] * 4 + [429] * 2
        assert admin.jobs() == []
        assert harness.http.get("/healthz").is_success


@pytest.mark.parametrize("told", [True, False])
def test_a_large_body_is_refused(harness: Harness, told: bool) -> None:
    size = CLOSED.max_body_bytes + 1
    body = b" " * size if told else iter([b" " * 65_536] * (size // 65_536 + 1))
    headers = {"Authorization": f"Bearer {ADMIN}"}
    for path in ("/v1/jobs", "/v1/tokens"):
        answer = harness.http.post(path, content=body, headers=headers)
        assert f"larger than {size - 1} bytes" in problem(answer, 413).detail
        body = b" " * size


def test_the_audit_log_says_who_did_what(
    redis_db: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "audit" / "log.jsonl"
    access = AccessConfig(admin_digest=digest(ADMIN), audit_file=str(file))
    with (
        running_gateway(redis_url, tmp_path, access) as harness,
        Client(str(harness.http.base_url), token=ADMIN) as admin,
        holder(harness, admin, "operator", "ads") as ads,
    ):
        job = ads.submit(SPEC).id
        ads.get(job)
        ads.request("POST", f"/v1/jobs/{job}:cancel", headers={"X-Request-Id": "r-1"})
        with pytest.raises(Forbidden):
            Access(ads).tokens()
        harness.http.get("/v1/jobs")
        (token,) = Access(admin).tokens()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    who = f"token:{token.id}"
    seen = [(x["who"], x["tenant"], x["role"], x["what"], x["on"], x["status"]) for x in lines]
    assert seen == [
        ("token:admin", "*", "admin", "POST /v1/tokens", {}, 201),
        (who, "ads", "operator", "POST /v1/jobs", {"job": job}, 201),
        (who, "ads", "operator", "POST /v1/jobs/{job}:cancel", {"job": job}, 202),
        (who, "ads", "operator", "GET /v1/tokens", {}, 403),
        (None, None, None, "GET /v1/jobs", {}, 401),
    ]
    assert lines[2]["request_id"] == "r-1"
    assert all(x["from"] == "127.0.0.1" for x in lines)
    assert "emb_" not in file.read_text()


def test_other_sites_are_shut_out_unless_they_are_named(
    harness: Harness, redis_url: str, tmp_path: Path
) -> None:
    asks = {"Origin": "https://evil.example", "Access-Control-Request-Method": "GET"}
    answer = harness.http.options("/v1/jobs", headers=asks)
    problem(answer, 405)
    assert "access-control-allow-origin" not in answer.headers
    access = AccessConfig(
        admin_digest=digest(ADMIN), cors_origins="https://console.example, https://b.example"
    )
    with running_gateway(redis_url, tmp_path, access) as other:
        for origin, allowed in (("https://console.example", True), ("https://evil.example", False)):
            answer = other.http.options("/v1/jobs", headers={**asks, "Origin": origin})
            assert (answer.headers.get("access-control-allow-origin") == origin) == allowed


def test_a_token_of_an_identity_provider_opens_the_door(
    redis_db: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    key = ECKey.generate_key("P-256", {"kid": "e1"})

    class Provider(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            base = f"http://127.0.0.1:{self.server.server_address[1]}"  # type: ignore[index]
            documents: dict[str, Any] = {
                "/.well-known/openid-configuration": {"issuer": base, "jwks_uri": f"{base}/keys"},
                "/keys": {"keys": [key.as_dict(private=False)]},
            }
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(documents[self.path]).encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider) as provider:
        threading.Thread(target=provider.serve_forever, args=(0.05,), daemon=True).start()
        issuer = f"http://127.0.0.1:{provider.server_address[1]}"
        access = AccessConfig(oidc_issuer=issuer, oidc_audience="embermesh")
        claims: dict[str, Any] = {
            "iss": issuer,
            "aud": "embermesh",
            "sub": "alice",
            "tenant": "ads",
        }
        claims |= {"role": "operator", "exp": int(time.time()) + 60}
        token = jwt.encode({"alg": "ES256", "kid": "e1"}, claims, key)
        with (
            running_gateway(redis_url, tmp_path, access) as harness,
            Client(str(harness.http.base_url), token=token) as alice,
        ):
            assert alice.submit(SPEC).tenant == "ads"
            with pytest.raises(Forbidden, match="oidc:alice is operator"):
                Access(alice).tokens()
        provider.shutdown()
