"""Pause and resume: what may be asked when, what the reconciler makes of it, and what it costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from gateway import commands, quotas
from gateway.actions import PublishRun, RetireRun, Start, Stop, TakeCheckpoint
from gateway.checkpoints import Call
from gateway.present import job_view
from gateway.reconciler import PAUSE, SCALE, Seen, Step, step
from gateway.record import JobRecord
from services.api.access import Quota
from services.api.views import JobState, RestoreRequest
from services.kit.discovery import Phase
from services.kit.errors import Conflict, QuotaExceeded
from tests.fixtures.gateway_looks import (
    LIMITS,
    NEWEST,
    TAKEN,
    ended,
    event,
    failed,
    job,
    kinds,
    members,
    run,
    seen,
)

OVER = [state for state in JobState if state.final]


def pausing(**changes: Any) -> JobRecord:
    return job(JobState.PAUSING, **changes)


def call(purpose: str = f"{PAUSE} 1000.0", **changes: Any) -> Call:
    return dataclasses.replace(Call(3, purpose, began=1000.0, ended=1001.0), **changes)


# ---- what may be asked


def test_a_running_job_goes_on_until_its_checkpoint() -> None:
    asked = commands.pause(job(JobState.RUNNING), 9.0)
    assert (asked.state, asked.since, asked.becomes) == (JobState.PAUSING, 9.0, None)


def test_a_job_without_processes_is_paused_at_once() -> None:
    asked = commands.pause(job(JobState.PENDING, restore="file://m", not_before=50.0), 9.0)
    assert (asked.state, asked.restore) == (JobState.PAUSED, "file://m")


def test_a_starting_job_ends_at_once_and_resumes_where_it_began_with_the_counts_asked_for() -> None:
    asked = commands.pause(job(JobState.STARTING, restore="file://m", scale_to=5), 9.0)
    assert (asked.state, asked.becomes) == (JobState.STOPPING, JobState.PAUSED)
    gone = step(asked, Seen(run=run(active=False)), 9.0, LIMITS).record
    assert (gone.state, gone.restore, gone.scale_to) == (JobState.PAUSED, "file://m", None)
    assert gone.spec["resources"]["trainers"] == 5


def test_a_restart_that_is_under_way_ends_in_the_pause() -> None:
    stopping = job(JobState.STOPPING, becomes=JobState.PENDING, restore="file://m", restarts=1)
    asked = commands.pause(stopping, 9.0)
    assert (asked.becomes, asked.restore) == (JobState.PAUSED, "file://m")
    gone = step(asked, Seen(run=run(active=False)), 9.0, LIMITS)
    assert gone.record.state == JobState.PAUSED and event(gone).event == "paused"


@pytest.mark.parametrize(
    "record",
    [pausing(), job(JobState.PAUSED), job(JobState.STOPPING, becomes=JobState.PAUSED)],
    ids=str,
)
def test_pausing_twice_is_once(record: JobRecord) -> None:
    assert commands.pause(record, 9.0) is record


@pytest.mark.parametrize("verb", [commands.pause, commands.resume])
@pytest.mark.parametrize("state", OVER)
def test_what_is_over_is_neither_paused_nor_resumed(
    verb: Callable[[JobRecord, float], JobRecord], state: JobState
) -> None:
    with pytest.raises(Conflict, match=f"job a-1 is {state}; only a "):
        verb(job(state), 9.0)
    with pytest.raises(Conflict, match=f"job a-1 is stopping, then {state}; only a "):
        verb(job(JobState.STOPPING, becomes=state), 9.0)


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.STARTING, JobState.RUNNING])
def test_without_checkpoints_a_pause_would_lose_everything(state: JobState) -> None:
    with pytest.raises(Conflict, match="no `checkpoint` in its spec; pausing goes through"):
        commands.pause(job(state, checkpoint=False), 9.0)


def test_resume_starts_the_next_generation_with_a_clean_count_of_restarts() -> None:
    paused = job(JobState.PAUSED, restore="file://m", restarts=2, error="x", not_before=99.0)
    asked = commands.resume(paused, 9.0)
    assert (asked.state, asked.restarts, asked.error) == (JobState.PENDING, 0, "")
    started = step(asked, Seen(newest=NEWEST), 9.0, LIMITS).record
    assert (started.state, started.generation) == (JobState.STARTING, 4)
    assert started.restore == "file://m", "not whatever is newest"


def test_resume_takes_back_a_pause_that_is_under_way() -> None:
    assert commands.resume(pausing(), 9.0).state == JobState.RUNNING
    stopping = job(JobState.STOPPING, becomes=JobState.PAUSED)
    asked = commands.resume(stopping, 9.0)
    assert (asked.state, asked.becomes) == (JobState.STOPPING, JobState.PENDING)


@pytest.mark.parametrize(
    "record",
    [
        job(JobState.PENDING),
        job(JobState.STARTING),
        job(JobState.RUNNING),
        job(JobState.STOPPING, becomes=JobState.PENDING),
    ],
    ids=str,
)
def test_resuming_what_goes_on_anyway_changes_nothing(record: JobRecord) -> None:
    assert commands.resume(record, 9.0) is record


def test_a_paused_job_is_cancelled_restored_and_scaled() -> None:
    paused = job(JobState.PAUSED, restore="file://m")
    assert commands.cancel(paused, 9.0).state == JobState.CANCELLED
    assert commands.cancel(pausing(), 9.0).becomes == JobState.CANCELLED
    restored = commands.restore(paused, "file://old", RestoreRequest(), 9.0)
    assert (restored.state, restored.restore) == (JobState.PENDING, "file://old")
    scaled = commands.scale(paused, 4, 9.0, sparse_ps=3)
    assert (scaled.state, scaled.scaling) == (JobState.PAUSED, False)
    assert scaled.spec["resources"] == paused.spec["resources"] | {"trainers": 4, "sparse_ps": 3}
    assert commands.scale(scaled, 4, 10.0) is scaled


def test_another_count_may_be_asked_for_while_pausing() -> None:
    asked = commands.scale(pausing(), 4, 9.0)
    assert (asked.state, asked.scale_to) == (JobState.PAUSING, 4)


# ---- what the reconciler makes of it


def test_a_pause_is_a_checkpoint_and_then_the_end_of_all_processes() -> None:
    record = pausing()
    assert step(record, seen(), 1000.0, LIMITS).actions == (TakeCheckpoint(f"{PAUSE} 1000.0"),)
    under_way = seen(call=call(ended=None))
    assert step(record, under_way, 1030.0, LIMITS) == Step(record)
    taken = step(record, seen(call=call(checkpoint=TAKEN)), 1001.0, LIMITS)
    assert (taken.record.state, taken.record.becomes) == (JobState.STOPPING, JobState.PAUSED)
    assert taken.record.restore == TAKEN.uri
    assert event(taken).message == "its processes end; it resumes from checkpoint 000005"
    ends = step(taken.record, seen(), 1002.0, LIMITS)
    assert ends.actions == (RetireRun(), Stop(kill=False))
    gone = step(ends.record, Seen(run=run(active=False)), 1003.0, LIMITS)
    assert (gone.record.state, gone.record.becomes) == (JobState.PAUSED, None)
    assert (event(gone).event, event(gone).message) == ("paused", "all processes have ended")
    assert step(gone.record, Seen(run=run(active=False)), 9e9, LIMITS) == Step(gone.record)


def test_a_checkpoint_for_something_else_is_not_taken_for_the_pauses() -> None:
    scaled = call(f"{SCALE} 990.0", checkpoint=TAKEN)
    assert step(pausing(), seen(call=scaled), 1001.0, LIMITS).actions == (
        TakeCheckpoint(f"{PAUSE} 1000.0"),
    )


def test_a_scaling_that_the_pause_overtook_is_carried_out_by_the_resumption() -> None:
    record = commands.pause(job(JobState.RUNNING, scale_to=4, scale_at=990.0), 1000.0)
    taken = step(record, seen(call=call(checkpoint=TAKEN)), 1001.0, LIMITS).record
    gone = step(taken, Seen(run=run(active=False)), 1002.0, LIMITS).record
    assert (gone.state, gone.scaling) == (JobState.PAUSED, False)
    assert gone.spec["resources"]["trainers"] == 4


@pytest.mark.parametrize(
    ("what", "later"),
    [({"permanent": True}, 1.0), ({"permanent": False}, LIMITS.checkpoint)],
    ids=["permanent", "in vain for long"],
)
def test_a_failed_checkpoint_leaves_the_job_running(what: dict[str, Any], later: float) -> None:
    record = pausing(scale_to=4)
    result = step(record, seen(call=call(error="disk full", **what)), 1000.0 + later, LIMITS)
    assert (result.record.state, result.record.scale_to) == (JobState.RUNNING, 4)
    told = event(result)
    assert (told.event, told.message) == ("pause-failed", "the job goes on as it is: disk full")


def test_a_passing_failure_of_the_checkpoint_is_tried_again() -> None:
    late = seen(call=call(error="another is under way"))
    assert step(pausing(), late, 1002.0, LIMITS).actions == ()
    assert kinds(step(pausing(), late, 1003.5, LIMITS)) == ["checkpoint"]


def test_a_trainer_that_dies_meanwhile_is_replaced_and_the_pause_goes_on() -> None:
    result = step(pausing(), ended(-9), 1001.0, LIMITS)
    assert (result.record.state, result.record.incarnations) == (JobState.PAUSING, (0, 1))
    # The checkpoint waits for the replacement's start.
    there = dataclasses.replace(seen(), processes=seen().processes[:-1])
    assert step(result.record, there, 1002.0, LIMITS).actions == (PublishRun(), Start())


def test_a_pause_does_not_wait_for_ever_for_room_for_a_replacement() -> None:
    record = pausing(incarnations=(0, 1), error="no free agent", replaced_at=1000.0)
    look = seen(processes=seen().processes[:-1], waits="no free agent")
    look = dataclasses.replace(look, members=members()[:-1])
    early = step(record, look, 1000.0 + LIMITS.checkpoint - 1, LIMITS)
    assert (early.record.state, kinds(early)[-1]) == (JobState.PAUSING, "start")
    late = step(record, look, 1000.0 + LIMITS.checkpoint, LIMITS)
    assert late.record.state == JobState.RUNNING
    assert event(late).message == "the job goes on as it is: no free agent"


def test_a_server_that_dies_meanwhile_ends_the_generation_and_the_pause_is_kept() -> None:
    look = dataclasses.replace(failed(0, "killed"), newest=NEWEST)
    result = step(pausing(), look, 1001.0, LIMITS)
    record = result.record
    assert (record.state, record.becomes) == (JobState.STOPPING, JobState.PAUSED)
    assert (record.restore, record.restarts) == (NEWEST.uri, 0)
    assert record.error == "sparse-ps 0: killed"
    assert event(result).message == (
        "its checkpoint for the pause was not complete: sparse-ps 0: killed; "
        f"it resumes from {NEWEST.uri}"
    )
    scratch = step(pausing(), failed(0, "killed"), 1001.0, LIMITS)
    assert scratch.record.restore == "" and "from scratch" in event(scratch).message


def test_a_permanent_error_meanwhile_fails_the_job() -> None:
    record = step(pausing(), failed(4, "no column C9", True), 1001.0, LIMITS).record
    assert (record.becomes, record.error) == (JobState.FAILED, "trainer 1: no column C9")


def test_a_job_that_came_to_its_end_first_succeeds() -> None:
    done = seen(members=members(trainers=Phase.DONE))
    assert step(pausing(checkpoint=False), done, 1001.0, LIMITS).record.becomes == (
        JobState.SUCCEEDED
    )


def test_progress_is_live_while_pausing_and_kept_while_paused() -> None:
    assert job_view(pausing(), members()).progress.samples == 200
    stopping = job(JobState.STOPPING, becomes=JobState.PAUSED)
    kept = step(stopping, seen(), 1001.0, LIMITS).record
    assert job_view(dataclasses.replace(kept, state=JobState.PAUSED)).progress.samples == 200


def test_a_paused_job_shows_the_figures_of_the_checkpoint_it_resumes_from() -> None:
    """What was trained after it is rolled back, so it is not shown as done."""
    stopping = job(JobState.STOPPING, becomes=JobState.PAUSED, restore=NEWEST.uri)
    looked = step(stopping, seen(newest=NEWEST), 1001.0, LIMITS).record
    assert looked.progress.samples == 200
    gone = step(looked, Seen(run=run(active=False), newest=NEWEST), 1002.0, LIMITS).record
    assert (gone.progress.samples, gone.progress.rows) == (NEWEST.samples, NEWEST.rows)


# ---- what it costs


def test_a_paused_job_takes_nothing_of_the_quota_until_it_resumes() -> None:
    admit = quotas.within("ads", Quota(jobs=1, trainers=2))
    paused, other = job(JobState.PAUSED), job(JobState.RUNNING)
    bigger = commands.scale(paused, 9, 9.0)
    admit(paused, bigger, [other])
    admit(None, job(JobState.PENDING), [])
    with pytest.raises(QuotaExceeded, match="jobs: tenant 'ads' would use 2; its quota is 1"):
        admit(paused, commands.resume(paused, 9.0), [other])
    with pytest.raises(QuotaExceeded, match="trainers: tenant 'ads' would use 9"):
        admit(bigger, commands.resume(bigger, 9.0), [])
    admit(pausing(), commands.resume(pausing(), 9.0), [])
