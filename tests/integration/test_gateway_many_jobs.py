"""A platform with a past: ten thousand jobs, and those of today must not feel them."""

from __future__ import annotations

import dataclasses
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis

from embermesh.client import Client
from gateway.record import new_record
from services.api import spec as jobspec
from services.api.views import JobState
from services.kit.discovery import Registry, Run
from tests.integration.gateway_harness import SPEC, Harness, running_gateway, wait_for

pytestmark = pytest.mark.slow
JOBS, RUNNING = 10_000, 10
PAGE = 100
# Bounds for a very busy machine: quiet ones need a twentieth of the time.
PAGE_SECONDS, GROWTH_BYTES = 2.0, 64 << 20


@pytest.fixture(scope="module")
def harness(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A gateway with jobs that are over, and all that they left in Redis, and some that run."""
    folder: Path = tmp_path_factory.mktemp("many")
    with redis.Redis.from_url(redis_url) as client, running_gateway(redis_url, folder) as harness:
        client.flushall()
        one = new_record(jobspec.validate(SPEC), 1.0)
        text = dataclasses.replace(one, id="ID", state=JobState.SUCCEEDED).to_json()
        pipe = client.pipeline(transaction=False)
        for number in range(JOBS):
            job = f"j{number}"
            record = text.replace(b'"ID"', f'"{job}"'.encode())
            pipe.hset(f"embermesh:gateway:job:{job}", "json", record)
            pipe.zadd("embermesh:gateway:jobs", {job: float(number // 10)})
            pipe.set(f"embermesh:checkpoint:{job}", "{}")
            pipe.xadd(f"embermesh:events:{job}", {"kind": "succeeded", "message": "x"})
        pipe.execute()
        jobs = [harness.submit(name=f"today{number}") for number in range(RUNNING)]
        for job in jobs:
            harness.wait(job, "running")
        yield harness


def test_all_are_listed_once_page_by_page_in_time_and_memory(harness: Harness) -> None:
    with Client(str(harness.http.base_url)) as client:
        client.jobs(limit=1000)  # whatever is made once is made now
        before = resident_bytes()
        seen, took, cursor = [], [], ""
        while cursor is not None:
            start = time.perf_counter()
            page = client.request("GET", "/v1/jobs", params={"limit": PAGE, "cursor": cursor})
            took.append(time.perf_counter() - start)
            seen += [job["id"] for job in page.json()["jobs"]]
            cursor = page.json()["next"]
    assert len(seen) == len(set(seen)) == JOBS + RUNNING
    assert seen[RUNNING] == f"j{JOBS - 1}", "newest first"
    assert sorted(took)[int(0.99 * len(took))] < PAGE_SECONDS, sorted(took)[-5:]
    assert resident_bytes() - before < GROWTH_BYTES, "pages are not kept"


def resident_bytes() -> int:
    """Memory of this process, which is the gateway's too."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def test_a_running_job_is_looked_at_without_a_search_of_the_past(
    harness: Harness, redis_url: str
) -> None:
    """Counted in commands, which don't depend on how busy the machine is."""
    with Client(str(harness.http.base_url)) as client, redis.Redis.from_url(redis_url) as server:
        running = [j for j in client.jobs(limit=RUNNING) if not j.state.final]
        assert len(running) == RUNNING
        for place in list(harness.target.table):
            harness.target.report(*place)  # leases of a minute may have ended
        server.config_resetstat()
        for job in running:
            assert len(client.get(job.id).members) == 5
        seen = looks(harness)
        wait_for(lambda: looks(harness) > seen + 1)  # the reconciler too
        stats = server.info("commandstats")
    assert stats["cmdstat_smembers"]["calls"] > RUNNING
    searches = {"cmdstat_scan", "cmdstat_keys", "cmdstat_sscan", "cmdstat_zrange"}
    assert not searches & set(stats)


def looks(harness: Harness) -> float:
    """How often the reconciler has looked at all jobs."""
    metric = harness.gateway.metrics.reconcile_seconds
    return next(s.value for m in metric.collect() for s in m.samples if s.name.endswith("_count"))


def test_runs_that_are_over_are_not_read_again(harness: Harness, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        registry = Registry(client)
        past = Run("past", 1, dict(SPEC), epoch=1, owners=[0])
        registry.publish_run(past)
        assert client.scard("embermesh:runs") == RUNNING + 1
        registry.publish_run(dataclasses.replace(past, active=False))
        assert client.scard("embermesh:runs") == RUNNING
        assert not registry.run("past").active, "it is still there to be restored from"


def test_a_megabyte_of_jobspec_is_refused_at_once_by_its_size(harness: Harness) -> None:
    body = b"name: " + b"x" * (1 << 20)
    start = time.perf_counter()
    answer: httpx.Response = harness.http.post("/v1/jobs", content=body)
    assert time.perf_counter() - start < PAGE_SECONDS
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"
    assert "the body is larger than 262144 bytes" in answer.json()["detail"]
