"""The table of job states."""

from __future__ import annotations

import dataclasses

import pytest

from gateway.record import JobRecord
from gateway.states import MOVES, move
from services.api.views import JobState
from services.kit.errors import Conflict

RECORD = JobRecord(id="a-1", name="a", spec={}, created=1.0, updated=1.0, since=1.0)


@pytest.mark.parametrize("origin", list(JobState))
@pytest.mark.parametrize("to", list(JobState))
def test_only_moves_of_the_table_are_possible(origin: JobState, to: JobState) -> None:
    record = dataclasses.replace(RECORD, state=origin)
    if to in MOVES[origin]:
        moved = move(record, to, 5.0, error="why")
        assert (moved.state, moved.since, moved.updated, moved.error) == (to, 5.0, 5.0, "why")
    else:
        with pytest.raises(Conflict, match=f"job a-1 is {origin}; it can't become {to}"):
            move(record, to, 5.0)


def test_every_state_is_reachable_and_every_generation_passes_through_stopping() -> None:
    reached, frontier = {JobState.PENDING}, [JobState.PENDING]
    while frontier:
        for to in MOVES[frontier.pop()] - reached:
            reached.add(to)
            frontier.append(to)
    assert reached == set(JobState)
    for state in (JobState.STARTING, JobState.RUNNING):
        assert not any(to.final or to == JobState.PENDING for to in MOVES[state])


def test_final_states_can_only_be_restored() -> None:
    assert all(MOVES[s] == {JobState.PENDING} for s in JobState if s.final)
