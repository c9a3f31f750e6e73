"""A job that the target has no room for: it says so once, and waits as long as it takes."""

from __future__ import annotations

import dataclasses

from gateway.actions import PublishRun, Start
from gateway.reconciler import Seen, Step, step
from gateway.targets import Process
from services.api.views import JobState
from services.kit.discovery import Role
from tests.fixtures.gateway_looks import LIMITS, alive, event, job, kinds, run, seen

REASON = "waits for free agents; it needs 1 trainer (free: 0 of 0 agents)"
NOBODY = Seen(run=run(), waits=REASON)


def test_the_reason_is_an_event_and_in_the_status_once() -> None:
    first = step(job(JobState.STARTING), NOBODY, 1001.0, LIMITS)
    assert (event(first).event, event(first).message) == ("waiting", REASON)
    assert first.record.error == REASON and first.record.state == JobState.STARTING
    again = step(first.record, NOBODY, 1002.0, LIMITS)
    assert again == Step(first.record, (Start(),)), "tries again, and writes nothing"
    other = step(again.record, dataclasses.replace(NOBODY, waits="another"), 1003.0, LIMITS)
    assert event(other).message == "another"


def test_waiting_does_not_count_as_a_slow_start() -> None:
    record, writes = job(JobState.STARTING), 0
    for now in range(1001, 2001):
        result = step(record, NOBODY, float(now), LIMITS)
        writes += result.record != record
        record = result.record
        assert record.state == JobState.STARTING and record.restarts == 0
    assert 1 < writes <= 2 + 1000 / (LIMITS.start / 2)
    placed = step(record, seen(members=()), 2001.0, LIMITS)
    assert placed.record.state == JobState.STARTING, "half of its patience is left at least"
    late = step(record, seen(members=()), 2001.0 + LIMITS.start, LIMITS)
    assert late.record.state == JobState.STOPPING


def test_a_replacement_may_wait_and_the_reason_goes_when_it_is_there() -> None:
    record = job(JobState.RUNNING, incarnations=(0, 1), replaced_at=1000.0)
    others = tuple(p for p in alive() if (p.role, p.rank) != (Role.TRAINER, 1))
    waits = seen(run=dataclasses.replace(run(), incarnations=[0, 1]), processes=others)
    waits = dataclasses.replace(waits, waits=REASON, members=waits.members[:-1])
    for now in range(1001, 1400):
        result = step(record, waits, float(now), LIMITS)
        assert "start" in kinds(result)
        record = result.record
    assert (record.state, record.error, record.incarnations) == (JobState.RUNNING, REASON, (0, 1))
    there = (*others, Process(Role.TRAINER, 1, alive=True, incarnation=1))
    placed = dataclasses.replace(waits, waits="", processes=there)
    result = step(record, placed, 1400.0, LIMITS)
    assert (result.record.state, result.record.error) == (JobState.RUNNING, "")


def test_a_running_job_without_trouble_is_left_alone() -> None:
    record = job(JobState.RUNNING)
    assert step(record, seen(), 1001.0, LIMITS) == Step(record)
    assert PublishRun() not in step(record, seen(), 1001.0, LIMITS).actions
