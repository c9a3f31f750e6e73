"""Tokens, roles and tenants over real HTTP and Redis: a gateway closed by default."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from embermesh.access import Access
from embermesh.client import Client
from gateway.identity import new_token
from services.api.access import ALL_TENANTS, AccessRole, Quota
from services.kit.errors import Forbidden, InvalidInput, NotFound, Unauthenticated
from tests.integration.gateway_closed import ADMIN, CLOSED, admin_of, holder
from tests.integration.gateway_harness import SPEC, Harness, problem, running_gateway, wait_for

OPEN_PATHS = {"/healthz", "/readyz", "/metrics"}


@pytest.fixture
def harness(redis_db: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[Harness]:
    with running_gateway(redis_url, tmp_path, CLOSED) as harness:
        yield harness


@pytest.fixture
def admin(harness: Harness) -> Iterator[Client]:
    with admin_of(harness) as client:
        yield client


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
    secret = made.token.split(made.id + "_", 1)[1]  # which may have a _ of its own
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
        for verb in ("cancel", "pause", "resume", "checkpoint", "restore", "scale"):
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
