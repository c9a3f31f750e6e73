"""Pause and resume through the REST API: real HTTP, Redis, gRPC; the processes are the test's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from embermesh import cli
from embermesh.access import Access
from embermesh.client import Client
from gateway import store as storing
from services.api.access import Quota
from services.api.views import JobState, JobView
from services.kit.discovery import Role
from services.kit.errors import Conflict, Forbidden, InvalidInput, PreconditionFailed, Unavailable
from services.kit.standby import Board
from tests.fixtures.standby_agents import Fleet
from tests.integration.gateway_closed import CLOSED, admin_of, holder
from tests.integration.gateway_harness import Harness, problem, running_gateway, wait_for


@pytest.fixture
def harness(redis_db: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[Harness]:
    with running_gateway(redis_url, tmp_path) as harness:
        yield harness


@pytest.fixture
def client(harness: Harness) -> Iterator[Client]:
    with Client(str(harness.http.base_url)) as client:
        yield client


def running(harness: Harness) -> str:
    job = harness.submit()
    harness.wait(job, "running")
    return job


def messages(client: Client, job: str, kind: str) -> list[str]:
    return [event.message for event in client.events(job) if event.kind == kind]


def test_a_job_is_paused_and_goes_on_from_its_checkpoint(harness: Harness, client: Client) -> None:
    job = running(harness)
    assert client.pause(job).state in (JobState.PAUSING, JobState.STOPPING)
    paused = client.wait_paused(job, 20)
    assert (paused.state, paused.generation, paused.error) == (JobState.PAUSED, 1, "")
    assert paused.checkpoint is not None and paused.members == []
    assert not any(p.alive for p in harness.target.table.values())
    assert harness.gateway.registry.active_runs() == [], "the checkpoint service leaves it alone"
    assert harness.gateway.store.active() == [], "the leader has no look for it any more"
    assert harness.events(job)[-3:] == ["pause", "pausing", "paused"]
    assert 'embermesh_jobs{state="paused"} 1.0' in harness.http.get("/metrics").text
    started = len(harness.target.started)

    again = client.pause(job)  # twice is once
    assert (again.version, client.get(job).state) == (paused.version, JobState.PAUSED)
    assert client.resume(job).state in (JobState.PENDING, JobState.STARTING)
    view = harness.wait(job, "running", generation=2)
    assert (view.restarts, len(harness.target.started)) == (0, 2 * started)
    assert harness.gateway.registry.run(job).restore == paused.checkpoint.uri
    assert client.resume(job).version == harness.view(job).version, "it goes on anyway"
    harness.finish(job, 2)
    assert harness.wait(job, "succeeded", generation=2).result is not None
    for verb in (":pause", ":resume"):
        refused = problem(harness.http.post(f"/v1/jobs/{job}{verb}"), 409)
        assert refused.detail.startswith(f"job {job} is succeeded; only a ")


def test_a_full_disk_leaves_the_job_running_and_an_event_says_so(
    redis_db: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    with (
        running_gateway(redis_url, tmp_path, checkpoint_seconds=2.0) as harness,
        Client(str(harness.http.base_url)) as client,
    ):
        job = running(harness)
        for refusal in (InvalidInput("no such bucket"), Unavailable("file://c: no space left")):
            harness.checkpoints.refusals.extend([refusal] * 2)
            client.pause(job)
            view = client.wait_paused(job, 20)
            assert (view.state, view.generation) == (JobState.RUNNING, 1)
            told = messages(client, job, "pause-failed")[-1]
            assert told.startswith("the job goes on as it is: ") and str(refusal) in told
            harness.checkpoints.refusals.clear()
        assert all(p.alive for p in harness.target.table.values()) and view.restarts == 0
        client.pause(job)
        assert client.wait_paused(job, 20).state == JobState.PAUSED


def test_a_server_that_dies_meanwhile_does_not_undo_the_pause(
    harness: Harness, client: Client
) -> None:
    job = running(harness)
    before = client.checkpoint(job)
    harness.checkpoints.refusals.extend([Unavailable("sparse-ps 0 is away")] * 100)
    client.pause(job)
    harness.target.end(job, 1, Role.SPARSE_PS, 0, -9)
    view = client.wait_paused(job, 20)
    assert view.state == JobState.PAUSED and view.error.startswith("sparse-ps 0: killed by SIGKILL")
    assert f"it resumes from {before.uri}" in messages(client, job, "pausing")[0]
    client.resume(job)
    view = harness.wait(job, "running", generation=2)
    assert (view.error, view.restarts) == ("", 0)
    assert harness.gateway.registry.run(job).restore == before.uri


def test_the_command_line_waits_and_says_how_it_ended(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["--url", str(harness.http.base_url), *arguments])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    job = running(harness)
    harness.checkpoints.refusals.append(InvalidInput("no such bucket"))
    code, out, err = run("pause", job, "--wait", "--json")
    assert (code, json.loads(out)["state"]) == (1, "running")
    assert "the job is not paused, it is running: the job goes on as it is: " in err
    assert "no such bucket" in err
    code, out, err = run("pause", job, "-w")
    assert (code, out) == (0, f"{job} paused\n"), err
    assert run("pause", job)[0] == 0, "twice is once"
    assert run("jobs")[1].count("paused") == 1
    code, out, _ = run("resume", job, "--json")
    assert code == 0 and json.loads(out)["state"] in ("pending", "starting")
    harness.wait(job, "running", generation=2)
    harness.finish(job, 2)
    harness.wait(job, "succeeded")
    code, _, err = run("pause", job, "--wait")
    assert code == 1 and f"job {job} is succeeded; only a job that is not over" in err


def test_headers_hold_for_pause_and_resume(harness: Harness, client: Client) -> None:
    job = running(harness)
    version = client.get(job).version
    with pytest.raises(PreconditionFailed):
        client.pause(job, version=version - 1)
    assert client.pause(job, version=version, idempotency_key="p1").version == version + 1
    assert client.wait_paused(job, 20).state == JobState.PAUSED
    client.resume(job, idempotency_key="r1")
    harness.wait(job, "running", generation=2)
    client.pause(job, version=version, idempotency_key="p1")  # a late retry of the first
    assert client.get(job).state == JobState.RUNNING
    with pytest.raises(Conflict, match="'p1' was used with another request"):
        client.resume(job, idempotency_key="p1")


def test_what_a_paused_job_allows(harness: Harness, client: Client) -> None:
    job = running(harness)
    client.scale(job, trainers=3)
    client.pause(job)
    paused = client.wait_paused(job, 20)
    client.resume(job)  # whichever came first, the trainers asked for are there
    view = harness.wait(job, "running", generation=paused.generation + 1)
    assert sum(m.role == "trainer" for m in view.members) == 3
    client.pause(job)
    client.wait_paused(job, 20)
    refused = problem(harness.http.post(f"/v1/jobs/{job}:checkpoint"), 409)
    assert "is paused; a checkpoint is taken of a running job" in refused.detail
    scaled = client.scale(job, sparse_ps=3, trainers=1)
    assert (scaled.state, scaled.spec["resources"]["sparse_ps"]) == (JobState.PAUSED, 3)
    listed = client.checkpoints(job)
    client.restore(job, checkpoint=listed[0].id)
    view = harness.wait(job, "running", generation=view.generation + 1)
    assert [m.role for m in view.members].count("sparse-ps") == 3
    assert harness.gateway.registry.run(job).restore == listed[0].uri
    client.pause(job)
    client.wait_paused(job, 20)
    assert client.cancel(job).state == JobState.CANCELLED
    assert client.wait(job, 5).state == JobState.CANCELLED


def test_a_stream_stays_open_over_a_pause(harness: Harness, client: Client) -> None:
    job = running(harness)
    states: list[str] = []
    for message in client.stream(job):
        if isinstance(message, JobView) and states[-1:] != [str(message.state)]:
            states.append(str(message.state))
            if message.state == JobState.PAUSED:
                client.resume(job)
            elif message.state == JobState.RUNNING and message.generation == 1:
                client.pause(job)
            elif message.state == JobState.RUNNING:
                harness.finish(job, 2)
    assert states[0] == "running" and states[-1] == "succeeded"
    assert "paused" in states and states.count("running") == 2


def test_a_paused_job_takes_no_quota_and_a_viewer_may_not_ask(
    redis_db: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    with running_gateway(redis_url, tmp_path, CLOSED) as harness, admin_of(harness) as admin:
        Access(admin).set_quota("ads", Quota(jobs=1))
        with (
            holder(harness, admin, "operator", "ads") as ads,
            holder(harness, admin, "viewer", "ads") as viewer,
        ):
            first = ads.submit(harness.spec).id
            wait_for(lambda: ads.get(first).state == JobState.RUNNING)
            for ask in (viewer.pause, viewer.resume):
                with pytest.raises(Forbidden, match="operator"):
                    ask(first)
            ads.pause(first)
            assert ads.wait_paused(first, 20).state == JobState.PAUSED
            (view,) = [t for t in Access(admin).tenants() if t.tenant == "ads"]
            assert (view.usage.jobs, view.usage.trainers, view.usage.memory_bytes) == (0, 0, 0)
            second = ads.submit(harness.spec).id
            with pytest.raises(Forbidden, match="jobs: tenant 'ads' would use 2; its quota is 1"):
                ads.resume(first)
            ads.cancel(second)
            wait_for(lambda: ads.get(second).state == JobState.CANCELLED)
            ads.resume(first)
            wait_for(lambda: ads.get(first).state == JobState.RUNNING)


def test_a_paused_job_outlives_its_gateway(
    redis_db: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    with running_gateway(redis_url, tmp_path) as harness:
        job = running(harness)
        harness.http.post(f"/v1/jobs/{job}:pause").raise_for_status()
        uri = harness.wait(job, "paused").checkpoint
    with running_gateway(redis_url, tmp_path) as harness:
        assert harness.view(job).state == JobState.PAUSED
        harness.http.post(f"/v1/jobs/{job}:resume").raise_for_status()
        harness.wait(job, "running", generation=2)
        assert uri is not None and harness.gateway.registry.run(job).restore == uri.uri


def test_agents_are_free_for_others_while_a_job_is_paused(
    redis_db: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    """Target standby with real agents: a paused job's room is another's."""
    board = Board(storing.connect(redis_url))
    fleet = Fleet(redis_url, tmp_path, board)
    try:
        for roles in ("sparse-ps", "dense-ps", "trainer"):
            fleet.start(roles, wait_for)
        one = {"sparse_ps": 1, "dense_ps": 1, "trainers": 1}
        with running_gateway(redis_url, tmp_path, target="standby") as harness:
            first = harness.submit(resources=one)
            harness.wait(first, "running", timeout=30)
            harness.http.post(f"/v1/jobs/{first}:pause").raise_for_status()
            harness.wait(first, "paused", timeout=30)
            wait_for(lambda: sum(board.agents().values()) == 3)
            second = harness.submit(resources=one)
            harness.wait(second, "running", timeout=30)
            harness.http.post(f"/v1/jobs/{first}:resume").raise_for_status()
            wait_for(lambda: "waiting" in harness.events(first), timeout=30)
            # It waits for room: that is no progress to keep, so a pause ends at once.
            harness.http.post(f"/v1/jobs/{first}:pause").raise_for_status()
            view = harness.wait(first, "paused", timeout=30)
            assert view.generation == 2 and view.checkpoint is not None
            harness.http.post(f"/v1/jobs/{second}:cancel").raise_for_status()
            harness.wait(second, "cancelled", timeout=30)
            harness.http.post(f"/v1/jobs/{first}:resume").raise_for_status()
            harness.wait(first, "running", generation=3, timeout=30)
            assert harness.gateway.registry.run(first).restore == view.checkpoint.uri
            harness.http.post(f"/v1/jobs/{first}:cancel").raise_for_status()
            harness.wait(first, "cancelled", timeout=30)
    finally:
        fleet.close()
