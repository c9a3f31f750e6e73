"""What users may ask in which state."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gateway import commands
from gateway.record import JobRecord
from services.api.views import JobState, RestoreRequest
from services.kit.errors import Conflict, InvalidInput

SPEC: dict[str, Any] = {
    "checkpoint": {"to": "file://c"},
    "resources": {"sparse_ps": 2, "dense_ps": 1, "trainers": 2},
}


def job(state: JobState, **changes: Any) -> JobRecord:
    base = JobRecord(id="a-1", name="a", spec=SPEC, created=1.0, updated=1.0, since=1.0)
    return dataclasses.replace(base, state=state, **changes)


@pytest.mark.parametrize("state", [JobState.STARTING, JobState.RUNNING])
def test_cancel_stops_an_active_job(state: JobState) -> None:
    asked = commands.cancel(job(state, scale_to=3), 9.0)
    assert (asked.state, asked.becomes) == (JobState.STOPPING, JobState.CANCELLED)
    assert asked.scale_to is None


def test_cancel_of_a_waiting_job_needs_no_stopping() -> None:
    assert commands.cancel(job(JobState.PENDING), 9.0).state == JobState.CANCELLED


def test_cancel_overrides_a_restart_that_is_under_way() -> None:
    asked = commands.cancel(job(JobState.STOPPING, becomes=JobState.PENDING), 9.0)
    assert (asked.state, asked.becomes) == (JobState.STOPPING, JobState.CANCELLED)


def test_cancel_twice_is_once() -> None:
    for record in (
        job(JobState.CANCELLED),
        job(JobState.STOPPING, becomes=JobState.CANCELLED),
    ):
        assert commands.cancel(record, 9.0) is record


@pytest.mark.parametrize("end", [JobState.SUCCEEDED, JobState.FAILED])
def test_an_ended_job_is_not_cancelled(end: JobState) -> None:
    for record in (job(end), job(JobState.STOPPING, becomes=end)):
        with pytest.raises(Conflict, match=f"has {end}"):
            commands.cancel(record, 9.0)


@pytest.mark.parametrize("state", [s for s in JobState if s.final])
def test_restore_revives_an_ended_job_with_other_counts(state: JobState) -> None:
    record = job(state, error="old", restarts=3, generation=4)
    asked = commands.restore(record, "file://m", RestoreRequest(sparse_ps=5), 9.0)
    assert asked.state == JobState.PENDING
    assert (asked.restore, asked.error, asked.restarts, asked.generation) == ("file://m", "", 0, 4)
    assert asked.spec["resources"] == {"sparse_ps": 5, "dense_ps": 1, "trainers": 2}
    assert SPEC["resources"]["sparse_ps"] == 2  # records share nothing that changes


@pytest.mark.parametrize("state", [JobState.STARTING, JobState.RUNNING])
def test_restore_of_an_active_job_stops_it_first(state: JobState) -> None:
    asked = commands.restore(job(state), "file://m", RestoreRequest(trainers=1), 9.0)
    assert (asked.state, asked.becomes) == (JobState.STOPPING, JobState.PENDING)
    assert (asked.restore, asked.spec["resources"]["trainers"]) == ("file://m", 1)


def test_restore_of_a_waiting_job_changes_where_it_starts() -> None:
    asked = commands.restore(job(JobState.PENDING, not_before=50.0), "m", RestoreRequest(), 9.0)
    assert (asked.state, asked.restore, asked.not_before) == (JobState.PENDING, "m", 0.0)


def test_restore_waits_for_stopping_to_end() -> None:
    with pytest.raises(Conflict, match="is stopping"):
        commands.restore(job(JobState.STOPPING), "m", RestoreRequest(), 9.0)


def test_scale_is_remembered_until_carried_out_and_can_be_taken_back() -> None:
    asked = commands.scale(job(JobState.RUNNING), 4, 9.0)
    assert (asked.scale_to, asked.scale_at, asked.state) == (4, 9.0, JobState.RUNNING)
    assert commands.scale(asked, 4, 10.0) is asked
    assert commands.scale(asked, 2, 10.0).scale_to is None


def test_each_count_is_asked_for_by_itself() -> None:
    asked = commands.scale(job(JobState.RUNNING), 4, 9.0)
    asked = commands.scale(asked, None, 10.0, sparse_ps=5, dense_ps=3)
    counts = (asked.scale_to, asked.scale_sparse_to, asked.scale_dense_to)
    assert (counts, asked.scale_at, asked.scaling) == ((4, 5, 3), 10.0, True)
    assert commands.scale(asked, None, 11.0, dense_ps=3) is asked
    asked = commands.scale(asked, 2, 12.0, sparse_ps=2)
    counts = (asked.scale_to, asked.scale_sparse_to, asked.scale_dense_to)
    assert (counts, asked.scale_at) == ((None, None, 3), 12.0)
    assert not commands.scale(asked, None, 13.0, dense_ps=1).scaling


def test_who_asked_for_a_scaling_is_remembered_until_it_is_carried_out() -> None:
    trace = {"traceparent": "00-1-2-01"}
    asked = commands.scale(job(JobState.RUNNING), 4, 9.0, request="ask", trace=trace)
    assert (asked.scale_request, asked.scale_trace) == ("ask", trace)
    assert JobRecord.from_json(asked.to_json()) == asked
    by_itself = commands.scale(asked, 5, 10.0)
    assert (by_itself.scale_request, by_itself.scale_trace) == ("", {})
    done = dataclasses.replace(asked, **commands.UNSCALED)
    assert (done.scaling, done.scale_request, done.scale_trace) == (False, "", {})


def test_scale_of_shards_in_trainers_is_refused_when_it_is_asked_for() -> None:
    spec = {**SPEC, "resources": {**SPEC["resources"], "placement": "embedded"}}
    record = job(JobState.RUNNING, spec=spec)
    with pytest.raises(InvalidInput, match="sparse_ps: 3 is asked for, but with placement"):
        commands.scale(record, None, 9.0, sparse_ps=3)
    assert commands.scale(record, 3, 9.0, dense_ps=2).scale_dense_to == 2


def test_scale_without_checkpoints_says_so() -> None:
    record = job(JobState.RUNNING, spec={**SPEC, "checkpoint": None})
    with pytest.raises(Conflict, match="no `checkpoint` in its spec"):
        commands.scale(record, 4, 9.0)


@pytest.mark.parametrize(
    "state", [JobState.PENDING, JobState.STOPPING, JobState.SUCCEEDED, JobState.CANCELLED]
)
def test_scale_needs_an_active_job(state: JobState) -> None:
    with pytest.raises(Conflict, match=f"is {state}; only"):
        commands.scale(job(state), 4, 9.0)


def test_shards_in_trainers_are_as_many_as_these() -> None:
    record = job(JobState.SUCCEEDED)
    request = RestoreRequest(placement="embedded", trainers=3)
    embedded = commands.restore(record, "file://m", request, 9.0)
    assert embedded.spec["resources"] == {
        "placement": "embedded",
        "sparse_ps": 3,
        "dense_ps": 1,
        "trainers": 3,
    }
    assert commands.with_resources(embedded.spec, trainers=5)["resources"]["sparse_ps"] == 5
    with pytest.raises(InvalidInput, match="sparse_ps: 2 is asked for, but with placement"):
        commands.with_resources(embedded.spec, sparse_ps=2)
    scaled = {**SPEC, "autoscale": {"sparse_ps": {"max": 4}}}
    with pytest.raises(InvalidInput, match=r"autoscale\.sparse_ps chooses a number"):
        commands.with_resources(scaled, placement="embedded")
    remote = commands.with_resources(embedded.spec, placement="remote", sparse_ps=2)
    assert (remote["resources"]["sparse_ps"], remote["resources"]["trainers"]) == (2, 3)
