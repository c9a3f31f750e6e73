"""Trainers that die while the job runs: who is replaced, and by which incarnation."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gateway.actions import PublishRun, Start
from gateway.commands import with_resources
from gateway.present import job_view
from gateway.reconciler import Seen, Step, step
from gateway.record import JobRecord
from gateway.targets import Process
from services.api.views import JobState
from services.kit.discovery import Member, Phase, Role
from tests.fixtures.gateway_looks import (
    LIMITS,
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


def with_trainer(
    incarnation: int, *, phase: Phase | None = Phase.READY, is_alive: bool = True
) -> Seen:
    """Trainer 1 is of that incarnation; without a phase it has no lease."""
    process = Process(Role.TRAINER, 1, is_alive, None if is_alive else -9, "", incarnation)
    member = Member("a-1", 3, Role.TRAINER, 1, phase=phase or Phase.READY, incarnation=incarnation)
    there = (*members()[:-1], member) if phase else members()[:-1]
    return seen(processes=(*alive()[:-1], process), members=there)


def replaced_job(**changes: Any) -> JobRecord:
    """Its trainer 1 is incarnation 2, decided on at 1990."""
    fields = {"incarnations": (1, 2), "restarts": 2, "replaced_at": 1990.0, **changes}
    return job(JobState.RUNNING, **fields)


@pytest.mark.parametrize(
    ("look", "text"),
    [
        (ended(-9, "bye\n"), "trainer 1: killed by SIGKILL; its log ends:\nbye"),
        (failed(4, "no broker"), "trainer 1: no broker"),
        (seen(silent={(Role.TRAINER, 1): 31.0}), "trainer 1: has not renewed its lease for 31 s"),
        (seen(processes=alive()[:-1]), "trainer 1 has vanished"),
    ],
)
def test_in_hybrid_a_dead_trainer_becomes_the_next_incarnation(look: Seen, text: str) -> None:
    result = step(job(JobState.RUNNING, restarts=1), look, 2000.0, LIMITS)
    record = result.record
    assert (record.state, record.generation, record.restarts) == (JobState.RUNNING, 3, 2)
    assert (record.incarnations, record.replaced_at) == ((0, 1), 2000.0)
    assert event(result).message == f"trainer 1 becomes incarnation 1 (restart 2 of 2): {text}"


@pytest.mark.parametrize(("mode", "replaced"), [("async", True), ("sync", False), ("kstep", False)])
def test_what_the_mode_says_of_a_dead_trainer(mode: str, replaced: bool) -> None:
    record = step(job(JobState.RUNNING, mode=mode), ended(-9), 2000.0, LIMITS).record
    assert record.incarnations == ((0, 1) if replaced else ())
    assert record.state == (JobState.RUNNING if replaced else JobState.STOPPING)


def test_a_trainer_with_a_shard_of_its_own_takes_rows_with_it() -> None:
    record = job(JobState.RUNNING)
    spec = with_resources(record.spec, placement="embedded")
    record = dataclasses.replace(record, spec=spec)
    result = step(record, ended(-9), 2000.0, LIMITS)
    assert (result.record.state, result.record.becomes) == (JobState.STOPPING, JobState.PENDING)


def test_the_count_of_samples_never_falls() -> None:
    """Each of the two trainers has trained 100 rows when one dies."""
    record = step(job(JobState.RUNNING), ended(-9), 2000.0, LIMITS).record
    assert record.progress.samples == 200
    without = [m for m in members() if (m.role, m.rank) != (Role.TRAINER, 1)]
    assert job_view(record, without).progress.samples == 200
    successor = dataclasses.replace(members()[-1], incarnation=1, status={"samples": 130})
    assert job_view(record, [*without, successor]).progress.samples == 230


def test_every_replacement_has_a_number_above_all_before() -> None:
    dead = [dataclasses.replace(p, alive=False, exit_code=-9) for p in alive()]
    look = seen(processes=(*alive()[:3], *dead[3:]))
    record = step(job(JobState.RUNNING), look, 2000.0, LIMITS).record
    assert (record.incarnations, record.restarts) == ((1, 2), 2)


def test_a_replacement_is_published_then_started_until_it_is_seen() -> None:
    present = dataclasses.replace(run(), incarnations=[1, 2])
    gone = with_trainer(0, is_alive=False)
    there = dataclasses.replace(
        gone,
        processes=(
            *with_trainer(1).processes[:3],
            Process(Role.TRAINER, 0, True, incarnation=1),
            gone.processes[-1],
        ),
    )
    record = replaced_job()
    assert step(record, there, 2000.0, LIMITS).actions == (PublishRun(), Start())
    published = dataclasses.replace(there, run=present)
    assert step(record, published, 2000.0, LIMITS).actions == (Start(),)


def only_trainer_1_replaced() -> JobRecord:
    return replaced_job(incarnations=(0, 2))


def test_what_the_dead_left_behind_counts_for_nothing() -> None:
    """Neither its process nor the last word in its lease."""
    old = dataclasses.replace(members()[-1], phase=Phase.FAILED, error="killed")
    look = with_trainer(2)
    look = dataclasses.replace(
        look, members=(*look.members[:-1], old), run=dataclasses.replace(run(), incarnations=[0, 2])
    )
    record = only_trainer_1_replaced()
    assert step(record, look, 2000.0, LIMITS) == Step(record)


def test_a_replacement_that_does_not_come_up_is_replaced_or_fails_the_job() -> None:
    record = only_trainer_1_replaced()
    published = dataclasses.replace(run(), incarnations=[0, 2])
    for phase in (None, Phase.STARTING):
        look = dataclasses.replace(with_trainer(2, phase=phase), run=published)
        assert step(record, look, 2090.0, LIMITS) == Step(record)
        result = step(dataclasses.replace(record, restarts=1), look, 2091.0, LIMITS)
        assert result.record.incarnations == (0, 3)
        assert "trainer 1: replacement not ready after 100 s" in event(result).message
        assert step(record, look, 2091.0, LIMITS).record.becomes == JobState.FAILED
    silent = dataclasses.replace(look, members=members()[:-1], silent={(Role.TRAINER, 1): 5.0})
    assert step(record, silent, 9000.0, LIMITS) == Step(record), "silence has its own patience"


@pytest.mark.parametrize("look", [failed(4, "no column C9", True), failed(0, "gone")])
def test_a_permanent_failure_and_one_of_a_server_replace_nobody(look: Seen) -> None:
    assert step(job(JobState.RUNNING), look, 2000.0, LIMITS).record.state == JobState.STOPPING


def test_a_server_and_a_trainer_that_failed_together_restart_the_job() -> None:
    both = dataclasses.replace(ended(-9), members=failed(0, "gone").members)
    result = step(job(JobState.RUNNING), both, 2000.0, LIMITS)
    assert (result.record.becomes, result.record.error) == (JobState.PENDING, "sparse-ps 0: gone")


def test_a_trainer_that_dies_before_the_job_runs_restarts_it() -> None:
    assert (
        step(job(JobState.STARTING), ended(-9), 1001.0, LIMITS).record.becomes == JobState.PENDING
    )


def test_the_next_generation_begins_with_first_incarnations() -> None:
    waiting = job(JobState.PENDING, generation=3, incarnations=(0, 2), replaced_at=1990.0)
    record = step(waiting, Seen(), 2000.0, LIMITS).record
    assert (record.incarnations, record.replaced_at) == ((), 0.0)


def test_a_job_that_stops_waits_for_replaced_processes_too() -> None:
    stopping = dataclasses.replace(
        only_trainer_1_replaced(), state=JobState.STOPPING, becomes=JobState.CANCELLED
    )
    look = seen(run=run(active=False), processes=(Process(Role.TRAINER, 1, alive=True),))
    assert kinds(step(stopping, look, 1001.0, LIMITS)) == ["stop"]
