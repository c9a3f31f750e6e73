"""The REST API over real HTTP, Redis and gRPC; the processes are the test's."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from tests.integration.gateway_harness import SPEC, Harness, problem, running_gateway


@pytest.fixture
def harness(redis_db: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[Harness]:
    with running_gateway(redis_url, tmp_path) as harness:
        yield harness


# ---- submit and look


@pytest.mark.parametrize(
    ("content_type", "text"),
    [
        ("application/json", json.dumps(SPEC)),
        ("application/yaml", yaml.safe_dump(SPEC)),
        ("", json.dumps(SPEC)),
        ("text/plain", yaml.safe_dump(SPEC)),
    ],
)
def test_a_job_is_submitted_as_yaml_or_json(harness: Harness, content_type: str, text: str) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    answer = harness.http.post("/v1/jobs", content=text, headers=headers)
    assert answer.status_code == 201
    view = answer.json()
    assert view["id"].startswith("clicks-")
    assert answer.headers["location"] == f"/v1/jobs/{view['id']}"
    assert sorted(view["spec"]["features"]["sparse"]) == ["C1", "C2", "C3"]
    assert view["spec"]["training"]["batch_size"] == 256  # defaults are shown


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"modell": 1}, "modell: Extra inputs are not permitted (got 1)"),
        (
            {"checkpoint": {"to": "s3://key:hush@bucket/folder"}},
            "checkpoint.to: holds a user name or password",
        ),
        ({"model": {"name": "alexnet"}}, "model.name: unknown model 'alexnet'; known: "),
        ({"model": {"name": "my model:f"}}, "model.name: 'my model:f' is not of the form"),
        (
            {"optimizers": {"sparse": {"adamx": {}}}},
            "optimizers.sparse: table 'default': unknown optimizer 'adamx'; known: ",
        ),
        (
            {"optimizers": {"dense": {"adam": {"rate": 1}}}},
            "optimizers.dense: dense: optimizer 'adam' has no parameter 'rate'; known: ",
        ),
        (
            {"features": {"sparse": {"C7": {"initializer": "ones"}}}},
            "features.sparse: table 'C7': unknown initializer 'ones'; known: ",
        ),
        (
            {"features": {"sparse": {"C7": {"optimizer": {"ftrl": {"l3": 1}}}}}},
            "features.sparse: table 'C7': optimizer 'ftrl' has no parameter 'l3'; known: ",
        ),
    ],
)
def test_a_wrong_spec_is_refused_by_field(
    harness: Harness, changes: dict[str, Any], line: str
) -> None:
    found = problem(harness.http.post("/v1/jobs", json={**SPEC, **changes}), 422)
    assert found.errors[0].startswith(line), found.errors
    assert "hush" not in found.detail
    assert harness.http.get("/v1/jobs").json() == {"jobs": [], "next": None}


def test_every_problem_of_a_spec_is_told_at_once(harness: Harness) -> None:
    wrong = {**SPEC, "name": "Bad Name", "resources": {"trainers": 0}}
    found = problem(harness.http.post("/v1/jobs", json=wrong), 422)
    assert [line.split(":")[0] for line in found.errors] == ["name", "resources.trainers"]


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("application/json", b"", "the body is empty"),
        ("application/json", b"{", "not JSON: "),
        ("application/json", b"[]", "a JobSpec is an object, got list"),
        ("application/yaml", b"a: [", "not YAML or JSON: "),
        ("application/yaml", b"just words", "a JobSpec is a mapping, got str"),
        ("application/yaml", b"\xff\xfe\xfd", "not YAML or JSON: "),
        ("application/yaml", b"[" * 600, "nested deeper than 50 levels"),
        ("application/json", b"[" * 5_000, "maximum recursion depth"),
    ],
)
def test_a_body_that_is_no_spec_is_refused(
    harness: Harness, content_type: str, body: bytes, text: str
) -> None:
    answer = harness.http.post("/v1/jobs", content=body, headers={"Content-Type": content_type})
    assert text in problem(answer, 422).detail


def test_an_idempotency_key_makes_a_retry_harmless(harness: Harness) -> None:
    headers = {"Idempotency-Key": "k1"}
    first = harness.http.post("/v1/jobs", json=SPEC, headers=headers)
    again = harness.http.post("/v1/jobs", json=SPEC, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["id"] == again.json()["id"]
    other = harness.http.post("/v1/jobs", json={**SPEC, "name": "b"}, headers=headers)
    assert "was used with another body" in problem(other, 409).detail
    assert len(harness.http.get("/v1/jobs").json()["jobs"]) == 1


def test_jobs_are_listed_newest_first(harness: Harness) -> None:
    ids = [harness.submit(name=name) for name in ("a", "b", "c")]
    listed = [j["id"] for j in harness.http.get("/v1/jobs").json()["jobs"]]
    assert listed == ids[::-1]
    assert len(harness.http.get("/v1/jobs?limit=2").json()["jobs"]) == 2
    assert "limit" in problem(harness.http.get("/v1/jobs?limit=0"), 422).errors[0]


def test_wrong_addresses_and_methods_are_problems(harness: Harness) -> None:
    for path in ("", ":cancel", ":checkpoint", "/events", "/checkpoints", "/logs"):
        method = "POST" if path.startswith(":") else "GET"
        found = problem(harness.http.request(method, f"/v1/jobs/no-such{path}"), 404)
        assert found.detail == "there is no job 'no-such'"
    assert problem(harness.http.get("/v2"), 404).title == "Not Found"
    assert problem(harness.http.delete("/v1/jobs"), 405).detail.startswith("DELETE /v1/jobs")


def test_an_unexpected_failure_is_a_problem_without_its_insides(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness.gateway.store, "page", lambda *_: 1 / 0)
    found = problem(harness.http.get("/v1/jobs"), 500)
    assert "ZeroDivision" not in found.detail


# ---- operators


def test_logs_are_plain_text(harness: Harness) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    answer = harness.http.get(f"/v1/jobs/{job}/logs", params={"role": "dense-ps", "tail": 5})
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text == "5 lines of dense-ps 0, generation 1\n"
    problem(harness.http.get(f"/v1/jobs/{job}/logs?rank=9"), 404)
    problem(harness.http.get(f"/v1/jobs/{job}/logs?role=cook"), 422)


def test_prometheus_finds_every_process(harness: Harness) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    groups = harness.http.get("/v1/services/prometheus").json()
    labels = {(g["labels"]["role"], g["labels"]["rank"]): g["targets"] for g in groups}
    assert len(groups) == 5
    assert labels["trainer", "1"] == ["127.0.0.1:9001"]
    assert {g["labels"]["job"] for g in groups} == {job}


def test_metrics_count_jobs_and_requests(harness: Harness) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    harness.http.get("/no/such/route")
    text = harness.http.get("/metrics").text
    for line in (
        'embermesh_jobs{state="running"} 1.0',
        'embermesh_jobs{state="failed"} 0.0',
        "embermesh_gateway_leader 1.0",
        'embermesh_gateway_actions_total{kind="start"} 1.0',
        'embermesh_http_seconds_count{method="POST",route="/v1/jobs",status="201"} 1.0',
        'embermesh_http_seconds_count{method="GET",route="none",status="404"} 1.0',
    ):
        assert line in text
    assert job not in text  # ids would make the number of series grow for ever


def test_openapi_describes_the_spec_and_has_no_dangling_reference(harness: Harness) -> None:
    document = harness.http.get("/openapi.json").json()
    body = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]
    assert body["application/yaml"]["schema"] == {"$ref": "#/components/schemas/JobSpec"}
    schemas = document["components"]["schemas"]
    wanted = {
        part.split('"')[0] for part in json.dumps(document).split('"#/components/schemas/')[1:]
    }
    assert wanted <= schemas.keys()
    assert {"JobSpec", "Problem", "JobView", "SparseFeature"} <= schemas.keys()


def test_the_gateway_is_healthy_and_ready(harness: Harness) -> None:
    assert harness.http.get("/healthz").text == "ok\n"
    assert harness.http.get("/readyz").text == "ready\n"


def test_records_survive_what_a_later_version_adds(harness: Harness, redis_db: redis.Redis) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    record = harness.gateway.store.get(job)
    later = {**json.loads(record.to_json()), "novelty": 1}
    read = type(record).from_json(json.dumps(later).encode())
    assert dataclasses.asdict(read) == dataclasses.asdict(record)
