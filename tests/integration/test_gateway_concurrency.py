"""What makes the API safe to use at the same time, again, and for long lists: ETag and If-Match,
Idempotency-Key, cursors, server-sent events.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from embermesh.client import Client
from gateway.routes import stream
from services.api.views import EventView, JobView
from services.kit.discovery import Phase, Role
from services.kit.errors import Conflict, InvalidInput, NotFound, PreconditionFailed
from tests.integration.gateway_harness import SPEC, Harness, problem, running_gateway, wait_for


@pytest.fixture
def harness(redis_db: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[Harness]:
    with running_gateway(redis_url, tmp_path) as harness:
        yield harness


@pytest.fixture
def client(harness: Harness) -> Iterator[Client]:
    with Client(str(harness.http.base_url)) as client:
        yield client


# ---- ETag and If-Match


def test_a_change_is_refused_when_the_job_has_moved_on(harness: Harness, client: Client) -> None:
    job = harness.submit()
    before = harness.wait(job, "running").version
    assert client.scale(job, trainers=3, version=before).version == before + 1
    with pytest.raises(PreconditionFailed, match=f'"{before}"'):
        client.cancel(job, version=before)
    assert harness.view(job).state != "cancelled"
    harness.wait(job, "running", generation=2)
    now = harness.view(job).version
    assert client.cancel(job, version=now).version > now


@pytest.mark.parametrize("header", ['W/"{v}"', "{v}", '"0"', '"x", "y"', "garbage"])
def test_only_the_present_tag_matches(harness: Harness, header: str) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    tag = harness.http.get(f"/v1/jobs/{job}").headers["etag"]
    wrong = {"If-Match": header.replace("{v}", tag.strip('"'))}
    problem(harness.http.post(f"/v1/jobs/{job}:cancel", headers=wrong), 412)
    right = {"If-Match": f'"0", {tag}'}
    answer = harness.http.post(f"/v1/jobs/{job}:cancel", headers=right)
    assert answer.status_code == 202
    assert answer.headers["etag"] != tag


def test_a_star_matches_whatever_there_is(harness: Harness) -> None:
    job = harness.submit()
    headers = {"If-Match": "*"}
    assert harness.http.post(f"/v1/jobs/{job}:cancel", headers=headers).status_code == 202
    problem(harness.http.post("/v1/jobs/no-such:cancel", headers=headers), 404)


def test_of_two_changes_of_one_version_one_wins(harness: Harness, client: Client) -> None:
    job = harness.submit()
    version = harness.wait(job, "running").version
    outcomes: list[str] = []

    def scale(trainers: int) -> None:
        try:
            client.scale(job, trainers=trainers, version=version)
            outcomes.append("made")
        except PreconditionFailed:
            outcomes.append("refused")

    threads = [threading.Thread(target=scale, args=(n,)) for n in (3, 4, 5, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made", "refused", "refused", "refused"]


# ---- Idempotency-Key


def test_a_repeated_restore_restores_once(harness: Harness, client: Client) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    client.checkpoint(job)
    version = harness.view(job).version
    for _ in range(3):
        client.restore(job, trainers=3, version=version, idempotency_key="r1")
        harness.wait(job, "running", generation=2)
    assert harness.events(job).count("restore") == 1
    with pytest.raises(Conflict, match="'r1' was used with another request"):
        client.restore(job, trainers=4, idempotency_key="r1")
    with pytest.raises(Conflict, match="'r1' was used with another request"):
        client.cancel(job, idempotency_key="r1")


def test_a_key_lives_as_long_as_sixteen_commands(harness: Harness, client: Client) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    for number in range(20):
        client.scale(job, trainers=2, idempotency_key=f"k{number}")  # as many as it has
    kept = [entry.split(" ")[1] for entry in harness.gateway.store.get(job).commands]
    assert kept == [f"k{number}" for number in range(4, 20)]


@pytest.mark.parametrize("key", ["x" * 201, "a b", "é".encode()])
def test_a_key_that_is_none_is_refused(harness: Harness, key: Any) -> None:
    headers = {"Idempotency-Key": key}
    assert (
        "Idempotency-Key"
        in problem(harness.http.post("/v1/jobs", json=SPEC, headers=headers), 422).errors[0]
    )


# ---- pages


def test_pages_hold_every_job_once_while_others_come(harness: Harness, client: Client) -> None:
    ids = [harness.submit(name=f"j{number}") for number in range(7)]
    walk = client.all_jobs(page=3)
    seen = [next(walk).id]
    harness.submit(name="late")
    seen += [job.id for job in walk]
    assert seen == ids[::-1]
    last = client.request("GET", "/v1/jobs", params={"limit": 8}).json()
    assert (len(last["jobs"]), last["next"]) == (8, None)
    for cursor in ("no-such", "*", " "):
        with pytest.raises(InvalidInput, match="names no page"):
            client.request("GET", "/v1/jobs", params={"cursor": cursor})


# ---- server-sent events


def read(answer: httpx.Response) -> Iterator[tuple[str, str, Any]]:
    """(id, event, data) of every message."""
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "event" in fields:
            yield fields.get("id", ""), fields["event"], json.loads(fields["data"])
            fields = {}


def test_a_stream_tells_a_jobs_life_to_its_end(harness: Harness) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    with harness.http.stream("GET", f"/v1/jobs/{job}/stream") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        messages = []
        for message in read(answer):
            messages.append(message)
            kind, data = message[1:]
            if kind == "job" and data["state"] == "running" and not data["progress"]["samples"]:
                status = {"samples": 7, "samples_per_second": 1.0}
                harness.target.report(job, 1, Role.TRAINER, 0, Phase.READY, status=status)
            elif kind == "job" and data["progress"]["samples"] == 7:
                harness.finish(job, 1)
    kinds = [(kind, data["kind"]) for _, kind, data in messages if kind == "event"]
    events = [kind for _, kind in kinds]
    assert events[0] == "submitted"
    assert events == harness.events(job)
    views = [data for _, kind, data in messages if kind == "job"]
    assert any(view["progress"]["samples"] == 7 for view in views)
    assert views[0]["spec"] == {}
    assert messages[-1][1:] == ("end", {"state": "succeeded"})


def test_a_stream_goes_on_after_the_last_event_seen(harness: Harness) -> None:
    job = harness.submit()
    harness.http.post(f"/v1/jobs/{job}:cancel").raise_for_status()
    harness.wait(job, "cancelled")
    path = f"/v1/jobs/{job}/stream"
    every = [m for m in read(harness.http.get(path)) if m[1] == "event"]
    headers = {"Last-Event-ID": every[0][0]}
    rest = [m for m in read(harness.http.get(path, headers=headers)) if m[1] == "event"]
    assert rest == every[1:]
    assert list(read(harness.http.get(f"{path}?after={every[0][0]}")))[:-2] == rest
    problem(harness.http.get(path, headers={"Last-Event-ID": "x"}), 422)
    problem(harness.http.get("/v1/jobs/no-such/stream"), 404)


def test_many_streams_keep_no_request_waiting(harness: Harness) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    limits = httpx.Limits(max_connections=100)
    url = str(harness.http.base_url)
    with httpx.Client(base_url=url, limits=limits, timeout=20, trust_env=False) as http:
        opened = [http.stream("GET", f"/v1/jobs/{job}/stream") for _ in range(60)]
        answers = [stream.__enter__() for stream in opened]
        assert all(answer.is_success for answer in answers)
        assert harness.view(job).state == "running"
        harness.finish(job, 1)
        for stream, answer in zip(opened, answers, strict=True):
            assert list(read(answer))[-1][1] == "end"
            stream.__exit__(None, None, None)


def test_a_closing_gateway_ends_its_streams(harness: Harness) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    ended = threading.Event()

    def listen() -> None:
        harness.http.get(f"/v1/jobs/{job}/stream")
        ended.set()

    thread = threading.Thread(target=listen)
    thread.start()
    assert not ended.wait(1.0)
    harness.gateway.closing.set()
    wait_for(ended.is_set)
    thread.join()


def test_the_client_reads_a_stream_across_its_ends(
    harness: Harness, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_LONGEST_SECONDS", 0.1)
    job = harness.submit()
    harness.wait(job, "running")
    events: list[str] = []
    for item in client.stream(job):
        if isinstance(item, EventView):
            events.append(item.kind)
        elif item.state == "running":
            harness.finish(job, 1)
    assert events == harness.events(job)
    (rest,) = client.stream(job, after=client.events(job)[-1].id)
    assert isinstance(rest, JobView)
    assert rest.state == "succeeded"
    with pytest.raises(NotFound):
        next(client.stream("no-such"))
