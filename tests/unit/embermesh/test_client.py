"""The client against canned answers: what it sends, what it returns, which error it raises."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import embermesh.client
from embermesh.client import Client
from services.api.spec import validate
from services.api.views import JobState
from services.kit import errors

SPEC: dict[str, Any] = {
    "name": "tiny",
    "model": {"name": "lr"},
    "data": {"source": "synthetic://criteo?rows=100"},
    "features": {"dense": "I1..I13", "sparse": {"C1..C26": {"dim": 4}}},
}


def job(state: str = "running", **fields: Any) -> dict[str, Any]:
    return {
        "id": "tiny-abc234",
        "name": "tiny",
        "state": state,
        "created": 1.0,
        "updated": 2.0,
        "spec": SPEC,
        **fields,
    }


def client_of(answer: Callable[[httpx.Request], httpx.Response]) -> Client:
    return Client("http://gateway:8080", transport=httpx.MockTransport(answer))


def test_a_job_can_be_submitted_as_text_path_mapping_and_jobspec(tmp_path: Path) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(201, json=job("pending"))

    file = tmp_path / "spec.yaml"
    file.write_text(json.dumps(SPEC))
    with client_of(answer) as client:
        for spec in (json.dumps(SPEC), file, SPEC, validate(SPEC)):
            assert client.submit(spec, idempotency_key="once").state == JobState.PENDING
    specs = [validate(json.loads(r.content)) for r in seen]
    assert specs == [validate(SPEC)] * 4
    assert {(r.method, r.url.path) for r in seen} == {("POST", "/v1/jobs")}
    assert {r.headers["idempotency-key"] for r in seen} == {"once"}


def test_a_spec_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with (
        client_of(lambda _: httpx.Response(500)) as client,
        pytest.raises(errors.InvalidInput, match=r"gone\.yaml"),
    ):
        client.submit(tmp_path / "gone.yaml")


@pytest.mark.parametrize(
    ("call", "method", "path", "body"),
    [
        (lambda c: c.get("j-1"), "GET", "/v1/jobs/j-1", None),
        (lambda c: c.cancel("j-1"), "POST", "/v1/jobs/j-1:cancel", None),
        (lambda c: c.scale("j-1", trainers=3), "POST", "/v1/jobs/j-1:scale", {"trainers": 3}),
        (
            lambda c: c.scale("j-1", sparse_ps=5, dense_ps=2),
            "POST",
            "/v1/jobs/j-1:scale",
            {"sparse_ps": 5, "dense_ps": 2},
        ),
        (
            lambda c: c.restore("j-1", checkpoint="000002", sparse_ps=5),
            "POST",
            "/v1/jobs/j-1:restore",
            {
                "checkpoint": "000002",
                "placement": None,
                "sparse_ps": 5,
                "dense_ps": None,
                "trainers": None,
            },
        ),
    ],
)
def test_every_verb_is_one_request(
    call: Callable[[Client], Any], method: str, path: str, body: dict[str, Any] | None
) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=job())

    with client_of(answer) as client:
        assert call(client).id == "tiny-abc234"
    (request,) = seen
    assert (request.method, request.url.path) == (method, path)
    assert (json.loads(request.content) if request.content else None) == body


def test_a_job_id_cannot_reach_another_route() -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path.decode())
        return httpx.Response(200, json=job())

    with client_of(answer) as client:
        client.get("../../metrics?x=1")
        with pytest.raises(errors.InvalidInput, match="empty"):
            client.get("")
    assert seen == ["/v1/jobs/..%2F..%2Fmetrics%3Fx%3D1"]


def test_parameters_of_logs_and_events() -> None:
    seen: list[dict[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(dict(request.url.params))
        if request.url.path.endswith("/logs"):
            return httpx.Response(200, text="a line\n")
        return httpx.Response(200, json={"events": []})

    with client_of(answer) as client:
        assert client.logs("j") == "a line\n"
        client.logs("j", role="sparse-ps", rank=2, tail=5, generation=3)
        client.events("j")
        client.events("j", after="17-0")
    assert seen == [
        {"role": "trainer", "rank": "0", "tail": "200"},
        {"role": "sparse-ps", "rank": "2", "tail": "5", "generation": "3"},
        {},
        {"after": "17-0"},
    ]


def test_checkpoints_are_a_list() -> None:
    one = {"id": "000001", "uri": "file:///c/1/manifest.json", "created": 1.0, "samples": 7}
    with client_of(lambda _: httpx.Response(200, json=[one])) as client:
        assert [c.samples for c in client.checkpoints("j")] == [7]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, errors.NotFound),
        (409, errors.Conflict),
        (422, errors.InvalidInput),
        (500, errors.EmbermeshError),
        (503, errors.Unavailable),
        (504, errors.DeadlineExceeded),
    ],
)
def test_a_problem_becomes_the_error_of_its_status(
    status: int, kind: type[errors.EmbermeshError]
) -> None:
    problem = {"title": "refused", "status": status, "detail": "the detail"}
    with (
        client_of(lambda _: httpx.Response(status, json=problem)) as client,
        pytest.raises(errors.EmbermeshError, match="the detail") as caught,
    ):
        client.jobs()
    assert type(caught.value) is kind


def test_every_wrong_field_is_in_the_message() -> None:
    wrong = ["model.name: Field required", "data.sauce: Extra inputs are not permitted"]
    problem = {"title": "invalid", "status": 422, "detail": "2 problems", "errors": wrong}
    with (
        client_of(lambda _: httpx.Response(422, json=problem)) as client,
        pytest.raises(errors.InvalidInput) as caught,
    ):
        client.submit("{}")
    assert str(caught.value).splitlines() == wrong


def test_an_error_page_of_somebody_else_is_still_an_error_of_ours() -> None:
    with (
        client_of(lambda _: httpx.Response(502, text="<html>proxy</html>")) as client,
        pytest.raises(errors.Unavailable, match="502"),
    ):
        client.jobs()


def test_an_answer_that_is_no_gateways_is_refused() -> None:
    with (
        client_of(lambda _: httpx.Response(200, text="hello")) as client,
        pytest.raises(errors.EmbermeshError, match="not an answer of an Embermesh gateway"),
    ):
        client.get("j")


def test_fields_of_a_newer_gateway_are_ignored() -> None:
    with client_of(lambda _: httpx.Response(200, json=job(colour="blue"))) as client:
        assert client.get("j").state == JobState.RUNNING


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (httpx.ConnectError("refused"), errors.Unavailable),
        (httpx.ReadTimeout("slow"), errors.DeadlineExceeded),
        (httpx.RemoteProtocolError("cut off"), errors.Unavailable),
    ],
)
def test_a_gateway_that_is_away_is_named(
    failure: httpx.HTTPError, kind: type[errors.EmbermeshError]
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise failure

    with client_of(answer) as client:
        with pytest.raises(kind, match="http://gateway:8080"):
            client.get("j")
        assert not client.ready()


def test_a_url_without_scheme_is_refused() -> None:
    with pytest.raises(errors.InvalidInput, match="gateway:8080"):
        Client("gateway:8080")


def test_waiting_outlives_a_restart_of_the_gateway() -> None:
    answers = [
        httpx.Response(200, json=job("running")),
        httpx.Response(503),
        httpx.Response(503),
        httpx.Response(200, json=job("succeeded")),
    ]
    states: list[JobState] = []
    with client_of(lambda _: answers.pop(0)) as client:
        looks = client.watch("j", every=0.0)
        states = [view.state for view in looks]
    assert states == [JobState.RUNNING, JobState.SUCCEEDED]


def test_waiting_ends_when_the_gateway_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embermesh.client, "GATEWAY_AWAY_SECONDS", 0.0)
    with (
        client_of(lambda _: httpx.Response(503)) as client,
        pytest.raises(errors.Unavailable),
    ):
        client.wait("j")


def test_waiting_has_a_deadline_that_names_the_job() -> None:
    seen: list[JobState] = []
    with (
        client_of(lambda _: httpx.Response(200, json=job("running"))) as client,
        pytest.raises(errors.DeadlineExceeded, match="job j was not done"),
    ):
        client.wait("j", timeout=0.0, on_update=lambda view: seen.append(view.state))
    assert seen[0] == JobState.RUNNING


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, embermesh; "
        "heavy = {'httpx', 'pydantic', 'typer', 'tensorflow'} & set(sys.modules); "
        "assert not heavy, heavy; embermesh.Client; embermesh.JobSpec"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
