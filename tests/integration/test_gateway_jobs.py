"""Jobs' lives through the REST API: real HTTP, Redis and gRPC; the processes are the test's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import redis

from services.api import manifest
from services.api.views import CheckpointView
from services.kit.discovery import Member, Phase, Role
from services.kit.errors import Unavailable
from services.kit.storage import Storage
from tests.integration.gateway_harness import Harness, problem, running_gateway, wait_for


@pytest.fixture
def harness(redis_db: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[Harness]:
    with running_gateway(redis_url, tmp_path) as harness:
        yield harness


def test_a_job_runs_is_checkpointed_and_succeeds(harness: Harness) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    assert len(harness.target.started) == 5
    for rank in range(2):
        status = {
            "samples": 300,
            "samples_per_second": 50.0 * (1 + 2 * rank),
            "auc": 0.6 + 0.1 * rank,
        }
        harness.target.report(job, 1, Role.TRAINER, rank, status=status)
        harness.target.report(job, 1, Role.SPARSE_PS, rank, status={"rows": 11})
    progress = harness.view(job).progress
    assert (progress.samples, progress.samples_per_second, progress.rows) == (600, 200.0, 22)
    assert progress.auc == pytest.approx(0.675)  # weighted by throughput

    harness.finish(job, 1)
    view = harness.wait(job, "succeeded")
    assert view.result is not None and view.result.auc == 0.75
    assert view.checkpoint is not None and view.checkpoint.id == "000001"
    assert view.progress.samples == 1000
    assert harness.gateway.registry.active_runs() == []
    assert not any(p.alive for p in harness.target.table.values())
    assert harness.events(job) == ["submitted", "starting", "running", "trained", "succeeded"]
    assert {m.role for m in view.members} == set()


def test_events_after_an_id_are_only_later_ones(harness: Harness) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    events = harness.http.get(f"/v1/jobs/{job}/events").json()["events"]
    assert [e["kind"] for e in events] == ["submitted", "starting", "running"]
    later = harness.http.get(f"/v1/jobs/{job}/events", params={"after": events[1]["id"]}).json()
    assert later["events"] == events[2:]
    wrong = harness.http.get(f"/v1/jobs/{job}/events", params={"after": "yesterday"})
    assert "after" in problem(wrong, 422).errors[0]


def test_processes_are_compiled_from_the_spec(harness: Harness) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    run = harness.gateway.registry.run(job)
    assert (run.generation, run.epoch, run.restore, run.active) == (1, 1, "", True)
    assert run.owners == [0] * 512 + [1] * 512
    started = {(s.role, s.rank): s for s in harness.target.started}
    sparse = started[Role.SPARSE_PS, 1]
    assert (sparse.module, sparse.arguments) == ("ps_service", ("sparse",))
    trainer = started[Role.TRAINER, 0]
    assert (trainer.module, trainer.arguments) == ("trainer_service", ())
    assert trainer.env["EMBERMESH_MEMBER_JOB"] == job
    assert trainer.env["TF_CPP_MIN_LOG_LEVEL"] == "2"


def test_cancel_stops_the_processes(harness: Harness) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    answer = harness.http.post(f"/v1/jobs/{job}:cancel")
    assert (answer.status_code, answer.json()["state"]) == (202, "stopping")
    harness.wait(job, "cancelled")
    assert not any(p.alive for p in harness.target.table.values())
    assert harness.http.post(f"/v1/jobs/{job}:cancel").status_code == 202  # asked twice is once


def test_a_process_that_does_not_end_is_killed(
    redis_db: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    with running_gateway(redis_url, tmp_path, stop_seconds=0.3) as harness:
        job = harness.submit()
        harness.wait(job, "running")
        harness.target.obeys = False
        harness.http.post(f"/v1/jobs/{job}:cancel")
        harness.wait(job, "cancelled")
        assert {p.exit_code for p in harness.target.table.values()} == {-9}


def test_a_killed_process_restarts_the_job_from_its_checkpoint(harness: Harness) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    taken = harness.http.post(f"/v1/jobs/{job}:checkpoint").raise_for_status().json()
    harness.target.end(job, 1, Role.SPARSE_PS, 0, -9)
    view = harness.wait(job, "running", generation=2)
    assert (view.restarts, view.error) == (1, "")
    assert harness.gateway.registry.run(job).restore == taken["uri"]
    (event,) = [
        e
        for e in harness.http.get(f"/v1/jobs/{job}/events").json()["events"]
        if e["kind"] == "restarting"
    ]
    assert event["message"].startswith("restart 1 of 3: sparse-ps 0: killed by SIGKILL")
    assert "the last line" in event["message"]


def test_a_permanent_error_fails_the_job_with_its_words(harness: Harness) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    error = "feature 'C9': no column 'C9'"
    harness.target.report(job, 1, Role.TRAINER, 1, Phase.FAILED, error=error, permanent=True)
    view = harness.wait(job, "failed")
    assert (view.error, view.restarts) == (f"trainer 1: {error}", 0)


def test_a_job_that_keeps_failing_fails_after_its_restarts(harness: Harness) -> None:
    job = harness.submit(max_restarts=1, training={"mode": "sync"})
    for generation in (1, 2):
        harness.wait(job, "running", generation)
        harness.target.end(job, generation, Role.TRAINER, 0, 1)
    view = harness.wait(job, "failed")
    assert "trainer 0: ended with exit code 1" in view.error
    assert view.error.endswith("(after 1 of max_restarts 1)")


def test_a_dead_trainer_is_replaced_while_the_job_runs_on(harness: Harness) -> None:
    job = harness.submit(max_restarts=2)
    harness.wait(job, "running", 1)
    for incarnation in (1, 2):
        harness.target.end(job, 1, Role.TRAINER, 1, -9)
        wait_for(partial(newest_is, harness, (1, incarnation)))
        assert harness.gateway.registry.run(job).incarnations == [0, incarnation]
    view = harness.wait(job, "running", 1)
    assert (view.restarts, len(view.members)) == (2, 5)
    assert harness.events(job).count("replacing") == 2
    harness.target.end(job, 1, Role.TRAINER, 0, -9)
    assert harness.wait(job, "failed").error.endswith("(after 2 of max_restarts 2)")


def newest_is(harness: Harness, trainer: tuple[int, int]) -> bool:
    """Whether the process started last is the trainer of that (rank, incarnation)."""
    newest = harness.target.started[-1]
    return (newest.role, newest.rank, newest.incarnation) == (Role.TRAINER, *trainer)


def test_scaling_goes_through_a_checkpoint(harness: Harness) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    harness.checkpoints.refusals.append(Unavailable("another checkpoint is under way"))
    answer = harness.http.post(f"/v1/jobs/{job}:scale", json={"trainers": 3})
    assert answer.status_code == 202
    view = harness.wait(job, "running", generation=2)
    assert (view.spec["resources"]["trainers"], view.restarts) == (3, 0)
    assert sum(m.role == "trainer" for m in view.members) == 3
    assert harness.gateway.registry.run(job).restore.endswith("/000001/manifest.json")
    wrong = harness.http.post(f"/v1/jobs/{job}:scale", json={"trainers": 0})
    assert problem(wrong, 422).errors[0].startswith("body.trainers: ")


def test_servers_scale_as_trainers_do(harness: Harness) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    body = {"sparse_ps": 3, "dense_ps": 2}
    answer = harness.http.post(f"/v1/jobs/{job}:scale", json=body).raise_for_status()
    assert answer.json()["state"] == "running"
    view = harness.wait(job, "running", generation=2)
    assert view.spec["resources"] | body == view.spec["resources"]
    roles = [m.role for m in view.members]
    assert [roles.count(r) for r in ("trainer", "sparse-ps", "dense-ps")] == [2, 3, 2]
    assert set(harness.gateway.registry.run(job).owners) == {0, 1, 2}
    said = [e["message"] for e in harness.http.get(f"/v1/jobs/{job}/events").json()["events"]]
    assert "3 sparse-PS, 2 dense-PS were asked for" in said
    assert "to 2 trainers, 3 sparse-PS and 2 dense-PS from checkpoint 000001" in said


@pytest.mark.parametrize("body", [{}, {"trainer": 3}, {"dense_ps": None}])
def test_scaling_nothing_is_refused(harness: Harness, body: dict[str, object]) -> None:
    found = problem(harness.http.post("/v1/jobs/any:scale", json=body), 422)
    assert "give trainers, sparse_ps or dense_ps" in found.errors[0]


def test_what_needs_checkpoints_says_so_without_them(harness: Harness) -> None:
    job = harness.submit(checkpoint=None)
    harness.wait(job, "running")
    for verb, body in ((":scale", {"trainers": 3}), (":checkpoint", {}), (":restore", {})):
        found = problem(harness.http.post(f"/v1/jobs/{job}{verb}", json=body), 409)
        assert "no `checkpoint` in its spec" in found.detail
    assert harness.http.get(f"/v1/jobs/{job}/checkpoints").json() == []


def test_checkpoints_are_taken_and_listed(harness: Harness) -> None:
    job = harness.submit()
    early = harness.http.post(f"/v1/jobs/{job}:checkpoint")
    if early.status_code != 200:  # most likely it was not running yet
        assert "a checkpoint is taken of a running job" in problem(early, 409).detail
    harness.wait(job, "running")
    harness.http.post(f"/v1/jobs/{job}:checkpoint").raise_for_status()
    listed = harness.http.get(f"/v1/jobs/{job}/checkpoints").json()
    newest = CheckpointView.model_validate(listed[-1])
    assert newest.samples == 2560
    assert harness.view(job).checkpoint == newest
    harness.checkpoints.refusals.append(Unavailable("sparse-ps 1: disk full"))
    failed = problem(harness.http.post(f"/v1/jobs/{job}:checkpoint"), 503)
    assert "sparse-ps 1: disk full" in failed.detail


def test_an_ended_job_is_restored_with_other_counts(harness: Harness) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    harness.http.post(f"/v1/jobs/{job}:checkpoint").raise_for_status()
    harness.finish(job, 1)
    harness.wait(job, "succeeded")
    body = {"checkpoint": "000001", "sparse_ps": 3, "trainers": 1}
    answer = harness.http.post(f"/v1/jobs/{job}:restore", json=body)
    assert (answer.status_code, answer.json()["result"]) == (202, None)
    view = harness.wait(job, "running", generation=2)
    assert len(view.members) == 5
    run = harness.gateway.registry.run(job)
    assert run.restore.endswith(f"{job}/000001/manifest.json")
    assert set(run.owners) == {0, 1, 2}
    harness.finish(job, 2, trainers=1)
    assert harness.wait(job, "succeeded", generation=2).result is not None


def test_a_checkpoint_that_is_not_there_or_damaged_is_refused(harness: Harness) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    missing = harness.http.post(f"/v1/jobs/{job}:restore", json={})
    assert problem(missing, 404).detail == f"job {job} has no checkpoint"
    uri = harness.http.post(f"/v1/jobs/{job}:checkpoint").json()["uri"]
    wrong = harness.http.post(f"/v1/jobs/{job}:restore", json={"checkpoint": "000009"})
    assert "no checkpoint '000009'; it has 000001" in problem(wrong, 404).detail
    path = Path(uri.removeprefix("file://"))
    stored = manifest.read(Storage(), uri)
    path.write_text(path.read_text().replace('"step": 10', '"step": 11'))
    damaged = harness.http.post(f"/v1/jobs/{job}:restore", json={"checkpoint": uri})
    assert uri in problem(damaged, 500).detail
    other = stored.model_copy(update={"partitions": 512})
    manifest.write(Storage(), str(path.parent), other)
    found = harness.http.post(f"/v1/jobs/{job}:restore", json={"checkpoint": uri})
    assert "has 512 partitions" in problem(found, 422).detail
    assert harness.view(job).state == "running"


def test_members_that_fall_silent_while_alive_restart_the_job(
    redis_db: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    with running_gateway(redis_url, tmp_path, silence_seconds=0.3) as harness:
        job = harness.submit()
        harness.wait(job, "running")
        harness.gateway.registry.withdraw(Member(job, 1, Role.DENSE_PS, 0))
        harness.wait(job, "running", generation=2)
        wait_for(lambda: harness.view(job).restarts == 1)
