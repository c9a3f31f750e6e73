"""`reconciler.step` in every situation of a job's life; no clock, no Redis, no process."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gateway.actions import KeepLogs, PublishRun, RetireRun, Start, Stop, TakeCheckpoint
from gateway.checkpoints import Call
from gateway.reconciler import FINAL, SCALE, Seen, Step, step
from gateway.record import JobRecord
from gateway.targets import Process
from services.api.views import JobState
from services.kit.discovery import Phase, Role, Run
from tests.fixtures.gateway_looks import (
    LIMITS,
    NEWEST,
    TAKEN,
    alive,
    ended,
    event,
    failed,
    job,
    kinds,
    members,
    run,
    seen,
)

# ---- start


def test_a_waiting_job_begins_the_next_generation() -> None:
    record = job(JobState.PENDING, generation=7, restore="file://m")
    result = step(record, Seen(newest=NEWEST), 1000.0, LIMITS)
    assert (result.record.state, result.record.generation) == (JobState.STARTING, 8)
    assert result.record.checkpoint_before == "000004"
    assert event(result).message == "generation 8 from file://m"


def test_a_restart_waits_for_its_time() -> None:
    record = job(JobState.PENDING, not_before=1001.0)
    assert step(record, Seen(), 1000.9, LIMITS) == Step(record)
    assert step(record, Seen(), 1001.0, LIMITS).record.state == JobState.STARTING


@pytest.mark.parametrize("present", [None, run(2), run(3, active=False)])
def test_starting_publishes_the_run_before_any_process_starts(present: Run | None) -> None:
    result = step(job(JobState.STARTING), Seen(run=present), 1001.0, LIMITS)
    assert result == Step(result.record, (PublishRun(), Start()))


def test_starting_goes_on_where_a_dead_gateway_stopped() -> None:
    half = seen(processes=alive()[:2], members=())
    assert step(job(JobState.STARTING), half, 1001.0, LIMITS).actions == (Start(),)


def test_starting_waits_while_everything_comes_up() -> None:
    record = job(JobState.STARTING)
    for there in ((), members(Phase.STARTING), members()[:-1]):
        assert step(record, seen(members=there), 1001.0, LIMITS) == Step(record)


def test_all_ready_is_running() -> None:
    result = step(job(JobState.STARTING, error="old"), seen(), 1001.0, LIMITS)
    assert (result.record.state, result.record.error) == (JobState.RUNNING, "")
    done = seen(members=members(trainers=Phase.DONE))
    assert step(job(JobState.STARTING), done, 1001.0, LIMITS).record.state == JobState.RUNNING


def test_a_start_that_takes_too_long_names_who_is_missing_and_why() -> None:
    late = seen(members=members()[:-1], trouble="Unavailable: no memory")
    result = step(job(JobState.STARTING), late, 1101.0, LIMITS)
    assert (result.record.state, result.record.becomes) == (JobState.STOPPING, JobState.PENDING)
    assert result.record.error == "not ready within 100 s: trainer 1: Unavailable: no memory"


def test_a_start_that_takes_too_long_says_what_a_process_waits_for() -> None:
    stuck = Process(Role.TRAINER, 1, True, waits_for="Unschedulable: 0/3 nodes are available")
    late = seen(members=members()[:-1], processes=(stuck,))
    result = step(job(JobState.STARTING), late, 1101.0, LIMITS)
    assert result.record.error == (
        "not ready within 100 s: trainer 1: trainer 1 waits: Unschedulable: 0/3 nodes are available"
    )


# ---- failures


def kept(result: Step) -> list[tuple[Role, int]]:
    """Whose last lines are kept, last of all that is done."""
    found = [a for a in result.actions if isinstance(a, KeepLogs)]
    assert not found or result.actions[-1] == found[0]
    return [place for action in found for place in action.places]


def test_the_last_lines_of_who_failed_are_kept() -> None:
    result = step(job(JobState.RUNNING, mode="sync"), failed(3, "lost"), 2000.0, LIMITS)
    assert kept(result) == [(Role.TRAINER, 0)]
    permanent = step(job(JobState.RUNNING), failed(4, "no column C9", True), 2000.0, LIMITS)
    assert kept(permanent) == [(Role.TRAINER, 1)]
    late = step(job(JobState.STARTING), seen(members=members()[:-2]), 1101.0, LIMITS)
    assert kept(late) == [(Role.TRAINER, 0), (Role.TRAINER, 1)]
    assert kept(step(job(JobState.RUNNING), trained(), 2000.0, LIMITS)) == []


def test_of_a_replaced_trainer_too_and_of_many_only_the_first_to_blame() -> None:
    replaced = step(job(JobState.RUNNING), failed(3, "lost"), 2000.0, LIMITS)
    assert replaced.record.state == JobState.RUNNING
    assert kept(replaced) == [(Role.TRAINER, 0)]
    there = tuple(dataclasses.replace(m, phase=Phase.FAILED, error="down") for m in members())
    assert len(there) > 4
    result = step(job(JobState.RUNNING), seen(members=there), 2000.0, LIMITS)
    assert kept(result) == [(m.role, m.rank) for m in there[:4]]


@pytest.mark.parametrize("state", [JobState.STARTING, JobState.RUNNING])
def test_a_failed_member_restarts_the_job_from_the_newest_checkpoint(state: JobState) -> None:
    look = dataclasses.replace(failed(3, "lost connection"), newest=NEWEST)
    result = step(job(state, restarts=1, mode="sync"), look, 2000.0, LIMITS)
    record = result.record
    assert (record.state, record.becomes) == (JobState.STOPPING, JobState.PENDING)
    assert (record.restarts, record.restore) == (2, NEWEST.uri)
    assert record.not_before == 2001.0  # 0.5 s, doubled once
    assert event(result).message == "restart 2 of 2: trainer 0: lost connection"


def test_after_restoring_an_older_checkpoint_a_restart_stays_in_that_history() -> None:
    record = job(JobState.RUNNING, restore="file://c/000002", checkpoint_before="000004")
    look = dataclasses.replace(failed(0, "x"), newest=NEWEST)
    assert step(record, look, 2000.0, LIMITS).record.restore == "file://c/000002"


def test_a_permanent_failure_fails_the_job_at_once() -> None:
    result = step(job(JobState.RUNNING), failed(4, "no column C9", True), 2000.0, LIMITS)
    assert (result.record.becomes, result.record.restarts) == (JobState.FAILED, 0)
    assert result.record.error == "trainer 1: no column C9"


def test_too_many_restarts_fail_the_job() -> None:
    result = step(job(JobState.RUNNING, restarts=2), failed(0, "x"), 2000.0, LIMITS)
    assert result.record.becomes == JobState.FAILED
    assert result.record.error == "sparse-ps 0: x (after 2 of max_restarts 2)"


def test_the_permanent_failure_is_blamed_then_the_server() -> None:
    there = [dataclasses.replace(m, phase=Phase.FAILED, error=f"{m.role} down") for m in members()]
    result = step(job(JobState.RUNNING), seen(members=tuple(there)), 2000.0, LIMITS)
    assert result.record.error == "sparse-ps 0: sparse-ps down"
    there[4] = dataclasses.replace(there[4], permanent=True)
    result = step(job(JobState.RUNNING), seen(members=tuple(there)), 2000.0, LIMITS)
    assert (result.record.becomes, result.record.error) == (
        JobState.FAILED,
        "trainer 1: trainer down",
    )


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (-9, "trainer 1: killed by SIGKILL; its log ends:\nlast line"),
        (1, "trainer 1: ended with exit code 1; its log ends:\nlast line"),
        (None, "trainer 1: ended with an unknown exit code; its log ends:\nlast line"),
    ],
)
def test_a_process_without_a_last_word_is_described(code: int | None, text: str) -> None:
    record = job(JobState.RUNNING, mode="sync")
    result = step(record, ended(code, "last line\n"), 2000.0, LIMITS)
    assert (result.record.becomes, result.record.error) == (JobState.PENDING, text)


def test_exit_code_2_is_permanent_even_without_a_lease() -> None:
    assert step(job(JobState.STARTING), ended(2), 1001.0, LIMITS).record.becomes == JobState.FAILED


def test_a_live_process_without_lease_is_dead_only_after_the_silence_bound() -> None:
    record = job(JobState.RUNNING, mode="sync")
    assert step(record, seen(silent={(Role.TRAINER, 0): 29.0}), 2000.0, LIMITS) == Step(record)
    result = step(record, seen(silent={(Role.TRAINER, 0): 31.0}), 2000.0, LIMITS)
    assert result.record.becomes == JobState.PENDING
    assert result.record.error == "trainer 0: has not renewed its lease for 31 s"


def test_a_process_the_target_lost_is_a_failure() -> None:
    for mode, lost, name in (("sync", 4, "trainer 1"), ("hybrid", 2, "dense-ps 0")):
        left = tuple(p for i, p in enumerate(alive()) if i != lost)
        result = step(job(JobState.RUNNING, mode=mode), seen(processes=left), 2000.0, LIMITS)
        assert result.record.error == f"{name} has vanished"


# ---- running and the end


def test_a_running_job_is_left_alone() -> None:
    record = job(JobState.RUNNING)
    assert step(record, seen(), 9e9, LIMITS) == Step(record)


def test_a_run_that_a_former_leader_overwrote_is_published_again() -> None:
    result = step(job(JobState.RUNNING), seen(run=run(2)), 2000.0, LIMITS)
    assert result.actions == (PublishRun(),)


def trained(**changes: Any) -> Seen:
    there = list(members(trainers=Phase.DONE))
    there[3] = dataclasses.replace(there[3], status={"result": {"auc": 0.75, "samples": 9}})
    return seen(members=tuple(there), **changes)


def test_one_trainer_done_is_not_the_end() -> None:
    there = (*members()[:-1], dataclasses.replace(members()[-1], phase=Phase.DONE))
    record = job(JobState.RUNNING)
    assert step(record, seen(members=there), 2000.0, LIMITS) == Step(record)


def test_all_trainers_done_takes_the_final_checkpoint_then_succeeds() -> None:
    record = job(JobState.RUNNING)
    assert step(record, trained(), 2000.0, LIMITS).actions == (TakeCheckpoint(FINAL),)
    under_way = Call(3, FINAL, began=2000.0)
    assert step(record, trained(call=under_way), 2001.0, LIMITS) == Step(record)
    call = dataclasses.replace(under_way, ended=2002.0, checkpoint=TAKEN)
    result = step(record, trained(call=call), 2002.0, LIMITS)
    assert (result.record.state, result.record.becomes) == (JobState.STOPPING, JobState.SUCCEEDED)
    assert result.record.result is not None and result.record.result.auc == 0.75


def test_a_failed_final_checkpoint_is_tried_again_then_fails_the_job() -> None:
    record = job(JobState.RUNNING)
    call = Call(3, FINAL, began=2000.0, ended=2005.0, error="busy")
    assert step(record, trained(call=call), 2006.0, LIMITS) == Step(record)
    assert step(record, trained(call=call), 2007.0, LIMITS).actions == (TakeCheckpoint(FINAL),)
    result = step(record, trained(call=call), 2060.0, LIMITS)
    assert result.record.becomes == JobState.FAILED
    assert result.record.error == "the final checkpoint failed: busy"
    permanent = dataclasses.replace(call, permanent=True)
    result = step(record, trained(call=permanent), 2005.0, LIMITS)
    assert result.record.becomes == JobState.FAILED


def test_without_checkpoints_done_is_success_at_once() -> None:
    result = step(job(JobState.RUNNING, checkpoint=False), trained(), 2000.0, LIMITS)
    assert result.record.becomes == JobState.SUCCEEDED


# ---- scale


def scaling(**changes: Any) -> JobRecord:
    return job(JobState.RUNNING, scale_to=5, scale_at=1990.0, **changes)


def test_scaling_takes_a_checkpoint_then_starts_the_next_generation_from_it() -> None:
    (take,) = step(scaling(), seen(), 2000.0, LIMITS).actions
    assert isinstance(take, TakeCheckpoint) and take.purpose == f"{SCALE} 1990.0"
    call = Call(3, take.purpose, began=2000.0, ended=2001.0, checkpoint=TAKEN)
    result = step(scaling(), seen(call=call), 2001.0, LIMITS)
    record = result.record
    assert (record.state, record.becomes) == (JobState.STOPPING, JobState.PENDING)
    assert (record.restore, record.scale_to, record.restarts) == (TAKEN.uri, None, 0)
    assert record.spec["resources"] == {
        "pods": {"trainer": None, "sparse_ps": None, "dense_ps": None},
        "placement": "remote",
        "sparse_ps": 2,
        "dense_ps": 1,
        "trainers": 5,
    }


def test_the_checkpoint_of_an_earlier_request_is_not_used_again() -> None:
    old = Call(3, f"{SCALE} 1500.0", began=1500.0, ended=1501.0, checkpoint=TAKEN)
    assert kinds(step(scaling(), seen(call=old), 2000.0, LIMITS)) == ["checkpoint"]


def test_scaling_that_gets_no_checkpoint_leaves_the_job_as_it_is() -> None:
    call = Call(3, f"{SCALE} 1990.0", began=2000.0, ended=2001.0, error="disk full", permanent=True)
    result = step(scaling(), seen(call=call), 2001.0, LIMITS)
    assert (result.record.state, result.record.scale_to) == (JobState.RUNNING, None)
    assert event(result).message == "all processes stay as they are: disk full"


def test_the_end_of_the_data_overtakes_scaling() -> None:
    call = Call(3, f"{SCALE} 1990.0", began=2000.0, ended=2001.0, checkpoint=TAKEN)
    result = step(scaling(), trained(call=call), 2001.0, LIMITS)
    assert result.actions == (TakeCheckpoint(FINAL),)


# ---- stop


def test_stopping_asks_then_kills_then_ends() -> None:
    record = job(JobState.STOPPING, becomes=JobState.CANCELLED)
    assert step(record, seen(), 1001.0, LIMITS).actions == (RetireRun(), Stop(kill=False))
    assert step(record, seen(run=run(3, False)), 1011.0, LIMITS).actions == (Stop(kill=True),)
    gone = tuple(dataclasses.replace(p, alive=False) for p in alive())
    result = step(record, seen(run=run(3, False), processes=gone), 1012.0, LIMITS)
    assert (result.record.state, result.record.becomes) == (JobState.CANCELLED, None)


def test_the_run_is_retired_before_a_job_ends() -> None:
    record = job(JobState.STOPPING, becomes=JobState.FAILED)
    result = step(record, seen(processes=()), 1001.0, LIMITS)
    assert (result.record.state, result.actions) == (JobState.STOPPING, (RetireRun(),))


def test_stopping_takes_the_last_progress_and_checkpoint_along() -> None:
    record = job(JobState.STOPPING, becomes=JobState.CANCELLED)
    after = step(record, seen(newest=NEWEST), 1001.0, LIMITS).record
    assert after.progress.samples == 200
    assert after.checkpoint is not None and after.checkpoint.id == "000004"
    later = step(after, seen(members=members()[:4]), 1002.0, LIMITS).record
    assert later.progress.samples == 200  # a trainer that has left doesn't count backwards


@pytest.mark.parametrize(("samples", "rows"), [(200, 77), (199, None)])
def test_rows_at_the_end_are_those_that_a_checkpoint_of_the_same_samples_counted(
    samples: int, rows: int | None
) -> None:
    record = job(JobState.STOPPING, becomes=JobState.SUCCEEDED)
    newest = dataclasses.replace(NEWEST, samples=samples, rows=77)
    live = step(record, seen(), 1001.0, LIMITS).record.progress
    assert live.samples == 200 and live.rows != 77
    after = step(record, seen(newest=newest), 1001.0, LIMITS).record
    assert after.progress.rows == (live.rows if rows is None else rows)


def test_shards_that_end_before_the_trainers_take_no_rows_along() -> None:
    def with_rows(*ranks: int) -> Seen:
        there = [m for m in members() if m.role != Role.SPARSE_PS or m.rank in ranks]
        rows = [
            dataclasses.replace(m, status={"rows": 50}) if m.role == Role.SPARSE_PS else m
            for m in there
        ]
        return seen(members=tuple(rows))

    record = job(JobState.STOPPING, becomes=JobState.CANCELLED)
    for ranks in ((0, 1), (1,), ()):
        record = step(record, with_rows(*ranks), 1001.0, LIMITS).record
        assert record.progress.rows == 100


def test_a_failure_while_stopping_changes_nothing() -> None:
    record = job(JobState.STOPPING, becomes=JobState.SUCCEEDED)
    result = step(record, failed(0, "killed", True), 1001.0, LIMITS)
    assert (result.record.becomes, result.record.error) == (JobState.SUCCEEDED, "")


@pytest.mark.parametrize("state", [s for s in JobState if s.final])
def test_ended_jobs_are_left_alone(state: JobState) -> None:
    record = job(state)
    assert step(record, Seen(run=run()), 9e9, LIMITS) == Step(record)


def test_a_whole_life_with_a_restart_ends_in_success() -> None:
    """Drives `step` with the effects of its own actions."""
    record, look = job(JobState.PENDING), Seen()
    path: list[JobState] = []
    for now in range(1000, 1100):
        if not path or path[-1] != record.state:
            path.append(record.state)
        result = step(record, look, float(now), LIMITS)
        record = result.record
        if record.state == JobState.STARTING:
            look = seen(run=run(record.generation))
        elif record.state == JobState.RUNNING:
            look = failed(0, "x") if record.generation == 1 else trained()
            look = dataclasses.replace(look, run=run(record.generation))
            if record.generation == 2:
                call = Call(2, FINAL, began=1.0, ended=2.0, checkpoint=TAKEN)
                look = dataclasses.replace(look, call=call)
        elif record.state == JobState.STOPPING:
            look = Seen(run=run(record.generation, active=False))
        if record.state.final:
            path.append(record.state)
            break
    life = ["pending", "starting", "running", "stopping"]
    assert [str(s) for s in path] == [*life, *life, "succeeded"]
    assert (record.generation, record.restarts) == (2, 1)
