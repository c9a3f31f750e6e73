"""How much a closed gateway lets whom do: quotas, rates, sizes; and what it notes of it."""

from __future__ import annotations

import http.server
import json
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
from gateway.identity import digest
from services.api.access import Quota
from services.kit.errors import Forbidden, QuotaExceeded, Unauthenticated
from tests.integration.gateway_closed import ADMIN, CLOSED, admin_of, holder
from tests.integration.gateway_harness import SPEC, Harness, problem, running_gateway, wait_for


@pytest.fixture
def harness(redis_db: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[Harness]:
    with running_gateway(redis_url, tmp_path, CLOSED) as harness:
        yield harness


@pytest.fixture
def admin(harness: Harness) -> Iterator[Client]:
    with admin_of(harness) as client:
        yield client


# ---- quotas


def test_a_quota_bounds_jobs_and_trainers(harness: Harness, admin: Client) -> None:
    access = Access(admin)
    access.set_quota("ads", Quota(jobs=2, trainers=5))
    with holder(harness, admin, "operator", "ads") as ads:
        job = ads.submit(harness.spec).id
        wait_for(lambda: ads.get(job).state == "running")
        assert ads.scale(job, trainers=3).id == job
        assert ads.scale(job, sparse_ps=3).id == job  # and the trainers asked for still count
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


# ---- rate, size, audit, CORS, other people's tokens


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
            late = jwt.encode({"alg": "ES256", "kid": "e1"}, claims | {"exp": 1_700_000_000}, key)
            with (
                Client(str(harness.http.base_url), token=late) as bob,
                pytest.raises(Unauthenticated, match=r"(?i)expired"),
            ):
                bob.jobs()
        provider.shutdown()
