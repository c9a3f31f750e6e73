"""When a checkpoint is due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.checkpoint.schedule import RETRY_SECONDS, Schedule, Wish


def test_the_first_is_due_one_interval_after_the_run_is_seen() -> None:
    schedule = Schedule()
    schedule.update({"a": Wish(1, 60)}, now=100)
    schedule.update({"a": Wish(1, 60)}, now=130)  # seeing it again changes nothing
    assert schedule.due(159.9) == []
    assert schedule.due(160) == [("a", 1)]


def test_the_next_is_due_one_interval_after_the_last_began() -> None:
    schedule = Schedule()
    schedule.update({"a": Wish(1, 60)}, now=0)
    schedule.begun("a", 75)
    assert schedule.due(134) == []
    assert schedule.due(135) == [("a", 1)]


def test_missed_intervals_are_not_made_up_for() -> None:
    schedule = Schedule()
    schedule.update({"a": Wish(1, 10)}, now=0)
    schedule.begun("a", 1000)
    assert schedule.due(1009) == []


def test_a_new_generation_or_interval_starts_anew() -> None:
    schedule = Schedule()
    schedule.update({"a": Wish(1, 60)}, now=0)
    schedule.update({"a": Wish(2, 60)}, now=50)
    assert schedule.due(109) == []
    assert schedule.due(110) == [("a", 2)]
    schedule.update({"a": Wish(2, 5)}, now=110)
    assert schedule.due(115) == [("a", 2)]


def test_a_run_that_is_gone_is_forgotten() -> None:
    schedule = Schedule()
    schedule.update({"a": Wish(1, 60), "b": Wish(1, 60)}, now=0)
    assert schedule.update({"b": Wish(1, 60)}, now=10) == ["a"]
    assert schedule.due(1000) == [("b", 1)]
    schedule.failed("a", 1, 1000)  # its last attempt may end later than the run
    assert schedule.due(2000) == [("b", 1)]


def test_the_most_overdue_comes_first() -> None:
    schedule = Schedule()
    schedule.update({"late": Wish(1, 10), "later": Wish(1, 5)}, now=0)
    assert schedule.due(20) == [("later", 1), ("late", 1)]


def test_a_failure_is_tried_again_soon() -> None:
    schedule = Schedule()
    schedule.update({"a": Wish(1, 3600)}, now=0)
    schedule.begun("a", 3600)
    schedule.failed("a", 1, 3610)
    assert schedule.due(3609 + RETRY_SECONDS) == []
    assert schedule.due(3610 + RETRY_SECONDS) == [("a", 1)]


def test_a_failure_of_an_older_generation_changes_nothing() -> None:
    schedule = Schedule()
    schedule.update({"a": Wish(2, 3600)}, now=0)
    schedule.failed("a", 1, 10)
    assert schedule.due(3599) == []


@given(
    every=st.floats(0.1, 1e4),
    waits=st.lists(st.tuples(st.floats(0, 1e4), st.booleans()), max_size=30),
)
def test_attempts_never_begin_closer_than_the_interval(
    every: float, waits: list[tuple[float, bool]]
) -> None:
    schedule = Schedule()
    schedule.update({"a": Wish(1, every)}, now=0)
    now, last = 0.0, 0.0
    for wait, fails in waits:
        now += wait
        if schedule.due(now):
            assert now - last >= min(every, RETRY_SECONDS) * (1 - 1e-9)
            schedule.begun("a", now)
            last = now
            if fails:
                schedule.failed("a", 1, now)
