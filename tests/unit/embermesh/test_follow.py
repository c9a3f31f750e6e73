"""Following logs: windows over growing texts, one per process."""

from __future__ import annotations

import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embermesh.client import Client
from embermesh.follow import added, follow, processes, read
from services.api.views import JobView
from services.kit import errors

SPEC = {"resources": {"trainers": 2, "sparse_ps": 1, "dense_ps": 1}}


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 20))
def test_every_line_is_given_once_while_the_window_reaches_back(
    first: int, second: int, tail: int
) -> None:
    """Nothing is doubled, and nothing lost unless more came than the window holds."""
    text = [f"line {i}\n" for i in range(first + second)]
    before, now = text[:first][-tail:], text[-tail:]
    assert added(before, now) == text[max(first, len(text) - tail) :]


def test_equal_lines_are_not_swallowed() -> None:
    assert added(["a\n", "b\n"], ["a\n", "b\n", "b\n"]) == ["b\n"]


def view(state: str) -> dict[str, object]:
    return {"id": "j", "name": "j", "state": state, "created": 0, "updated": 0, "spec": SPEC}


def test_processes_follow_from_the_spec() -> None:
    job = JobView.model_validate(view("succeeded"))
    everything = [("trainer", 0), ("trainer", 1), ("sparse-ps", 0), ("dense-ps", 0)]
    assert processes(job, None, None) == everything
    assert processes(job, "trainer", 1) == [("trainer", 1)]
    assert processes(job, "trainer", 2) == []


def test_each_process_is_followed_by_itself_until_the_job_is_over() -> None:
    logs = {"0": ["0: a\n", "0: b\n"], "1": []}
    states = ["running", "running", "succeeded"]
    looks = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal looks
        if request.url.path.endswith("/logs"):
            lines = logs[request.url.params["rank"]]
            if not lines:
                problem = {"title": "NotFound", "status": 404, "detail": "has no log"}
                return httpx.Response(404, json=problem)
            return httpx.Response(200, text="".join(lines))
        state = states[looks]
        looks += 1
        if looks == 2:
            logs["1"].append("1: a\n")
        if looks == 3:
            logs["0"].append("0: c\n")  # the last words
        return httpx.Response(200, json=view(state))

    with Client("http://gateway", transport=httpx.MockTransport(answer)) as client:
        chunks = list(follow(client, "j", "trainer", None, 100, every=0.0))
    text = "".join(chunk.as_text(named=False) for chunk in chunks)
    assert text.splitlines() == ["0: a", "0: b", "1: a", "0: c"]
    told = [json.loads(line) for chunk in chunks for line in chunk.as_json().splitlines()]
    assert told[2] == {"role": "trainer", "rank": 1, "line": "1: a"}
    assert [line["line"] for line in told] == text.splitlines()


def test_reading_names_each_process_and_leaves_out_those_without_a_log() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/logs"):
            return httpx.Response(200, json=view("running"))
        if request.url.params["role"] == "trainer" or "generation" in request.url.params:
            return httpx.Response(404, json={"title": "", "status": 404, "detail": "none"})
        return httpx.Response(200, text=f"I am {request.url.params['role']}\n")

    with Client("http://gateway", transport=httpx.MockTransport(answer)) as client:
        found = [chunk.as_text(named=True) for chunk in read(client, "j", None, None, 5)]
        assert found == [
            "==> sparse-ps-0 <==\nI am sparse-ps\n",
            "==> dense-ps-0 <==\nI am dense-ps\n",
        ]
        with pytest.raises(errors.NotFound, match="no log of trainer"):
            list(read(client, "j", "trainer", None, 5))
        with pytest.raises(errors.NotFound, match="no log of any process, generation 2"):
            list(read(client, "j", None, None, 5, generation=2))
