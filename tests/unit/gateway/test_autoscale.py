"""The autoscaling policy: on statuses recorded from a running job, on made-up histories, and in a
closed loop with a simulated job.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.autoscale import BEHIND, GOAL, LOW, Observation, Wish, decide, observe
from services.api.autoscale import Autoscale
from services.kit.discovery import Member, Role
from tests.data import ROOT

# What the members of a Kafka job (1 trainer, 2 sparse-PS) said every second or so: a trickle of
# messages from 0 s on, from 45 s on about as many as the trainer can read, from 95 s on more.
TRACE = json.loads((ROOT / "tests" / "traces" / "kafka-burst.json").read_text())
LATER = 1e6  # long after any change
Signal = Callable[[float], float | None]


def policy(**sections: Any) -> Autoscale:
    both = {"trainers": {"max": 8, "lag": 100}, "sparse_ps": {"max": 8}}
    return Autoscale.model_validate({"window": 20, "cooldown": 60, **(sections or both)})


def history(signals: dict[str, Signal], seconds: int = 20, end: float = LATER) -> list[Observation]:
    """One observation a second up to `end`; a signal is a function of the seconds since the first
    one.
    """
    return [
        Observation(end - seconds + s, **{k: of(float(s)) for k, of in signals.items()})
        for s in range(seconds + 1)
    ]


def always(value: float | None) -> Signal:
    return lambda _: value


def wish(
    signals: dict[str, Signal],
    *,
    trainers: int = 2,
    sparse_ps: int = 2,
    changed: float = 0.0,
    rule: Autoscale | None = None,
) -> dict[Role, Wish]:
    present = {Role.TRAINER: trainers, Role.SPARSE_PS: sparse_ps}
    return decide(rule or policy(), history(signals), present, LATER, changed)


def trainers(count: int = 2, **signals: Signal) -> int:
    return wish(signals, trainers=count)[Role.TRAINER].replicas


def shards(count: int = 2, **signals: Signal) -> int:
    return wish(signals, sparse_ps=count)[Role.SPARSE_PS].replicas


def recorded(start: float, end: float) -> list[Observation]:
    """The part of the trace between two times."""
    return [
        observe(
            [
                Member("j", 1, Role(m["role"]), m["rank"], status=m["status"])
                for m in look["members"]
            ],
            look["time"],
        )
        for look in TRACE
        if start <= look["time"] <= end
    ]


@pytest.mark.parametrize(
    ("at", "present", "wanted"),
    [
        (40.0, 1, 1),  # the trickle: it mostly waits, but there is no fewer than one
        (40.0, 4, 2),  # four that wait like this one
        (80.0, 1, 1),  # busy all the time, and keeps up
        (160.0, 1, 2),  # falls behind
        (160.0, 3, 5),
    ],
)
def test_trainers_on_a_recorded_job(at: float, present: int, wanted: int) -> None:
    counts = {Role.TRAINER: present, Role.SPARSE_PS: 2}
    wishes = decide(policy(), recorded(0, at), counts, at, changed=-LATER)
    assert wishes[Role.TRAINER].replicas == wanted, wishes
    assert wishes[Role.SPARSE_PS].replicas == 1, "small shards on a large machine"


def test_a_recorded_job_is_scaled_once_when_it_falls_behind() -> None:
    """Walked through as the gateway would see it."""
    rule = policy(trainers={"max": 2, "lag": 100})
    changes: list[tuple[float, int]] = []
    count, changed, seen = 1, -LATER, recorded(0, math.inf)
    for number, now in enumerate(o.time for o in seen):
        since = [o for o in seen[: number + 1] if o.time >= changed]
        found = decide(rule, since, {Role.TRAINER: count, Role.SPARSE_PS: 1}, now, changed)
        if found and found[Role.TRAINER].replicas != count:
            count, changed = found[Role.TRAINER].replicas, now
            changes.append((now, count))
    ((when, wanted),) = changes
    assert wanted == 2 and 95 <= when <= 140


def test_trainers_that_fall_behind_become_more_by_two_thirds() -> None:
    growing: Signal = lambda s: 1_000 + 50 * s  # noqa: E731
    assert trainers(3, busy=always(0.95), lag=growing) == math.ceil(3 * BEHIND / GOAL) == 5
    assert trainers(1, busy=always(0.95), lag=growing) == 2
    assert trainers(6, busy=always(0.95), lag=growing) == 8, "max"
    shrinking_slowly: Signal = lambda s: 100_000 - s  # noqa: E731
    assert trainers(3, busy=always(0.95), lag=shrinking_slowly) == 5


def test_lag_that_is_small_or_soon_gone_is_no_reason() -> None:
    assert trainers(2, busy=always(1.0), lag=lambda s: 99 * s / 20) == 2
    assert trainers(2, busy=always(1.0), lag=lambda s: 10_000 - 100 * s) == 2
    assert trainers(2, busy=always(1.0), lag=lambda s: 5_000 if s > 0 else 0.0) == 2, (
        "in the whole window"
    )


def test_trainers_that_wait_are_not_the_bottleneck() -> None:
    assert trainers(2, busy=always(0.3), lag=lambda s: 1_000 + 50 * s) == 2
    assert trainers(4, busy=always(0.3), lag=always(0)) == 2, "and without lag they are too many"
    assert trainers(8, busy=always(0.01), lag=always(0)) == 4, "at most half at once"
    assert trainers(1, busy=always(0.01), lag=always(0)) == 1, "min"


def test_files_have_no_lag_so_trainers_only_become_fewer() -> None:
    assert trainers(2, busy=always(1.0), lag=always(None)) == 2
    assert trainers(4, busy=always(0.2), lag=always(None)) == 2


def test_shards_follow_the_fuller_of_memory_and_cpu() -> None:
    assert shards(2, memory=always(0.7), cpu=always(0.5)) == 2
    assert shards(2, memory=always(0.9), cpu=always(0.1)) == math.ceil(2 * 0.9 / 0.8 / GOAL) == 3
    assert shards(2, memory=always(0.1), cpu=always(0.9)) == 3
    assert shards(4, memory=always(0.3), cpu=always(0.1)) == 2
    assert shards(2, memory=always(None), cpu=always(0.9)) == 3, "what is not said doesn't count"
    assert shards(4, memory=lambda s: 0.95 if s == 7 else 0.6, cpu=always(0.1)) == 4, "one peak"
    assert shards(4, memory=lambda s: 0.6 if s == 7 else 0.1, cpu=always(0.1)) == 4, "one peak"


def test_nothing_changes_during_the_cooldown_or_before_a_window_is_seen() -> None:
    signals: dict[str, Signal] = {"memory": always(0.95), "busy": always(0.1)}
    assert wish(signals, changed=LATER - 61)[Role.SPARSE_PS].replicas == 4
    cooling = wish(signals, changed=LATER - 59)
    assert {w.replicas for w in cooling.values()} == {2}
    assert {w.reason for w in cooling.values()} == {"cooling down"}
    assert cooling[Role.SPARSE_PS].load == pytest.approx(0.95 / 0.8), (
        "the load is told all the same"
    )
    short = history(signals, seconds=10)
    assert decide(policy(), short, {Role.TRAINER: 2, Role.SPARSE_PS: 2}, LATER, 0.0) == {}
    old = history(signals, end=LATER - 100)
    assert decide(policy(), old, {Role.TRAINER: 2, Role.SPARSE_PS: 2}, LATER, 0.0) == {}


def test_roles_are_scaled_only_where_the_spec_says_so() -> None:
    signals: dict[str, Signal] = {"memory": always(0.95), "busy": always(0.1)}
    assert wish(signals, rule=policy(sparse_ps={"max": 9})).keys() == {Role.SPARSE_PS}
    assert wish(signals, rule=policy(trainers={"max": 9})).keys() == {Role.TRAINER}
    assert wish({"busy": always(0.7)}).keys() == {Role.TRAINER}, "the shards say nothing"


def test_counts_outside_of_the_bounds_are_brought_back() -> None:
    rule = policy(trainers={"min": 3, "max": 4})
    for present, wanted in ((1, 3), (9, 4)):
        found = wish({"busy": always(0.7)}, trainers=present, rule=rule)[Role.TRAINER]
        assert (found.replicas, found.reason) == (wanted, f"{present} is outside min 3, max 4")


@given(
    count=st.integers(1, 40),
    busy=st.floats(0, 1),
    memory=st.floats(0, 1),
    cpu=st.floats(0, 1),
    lag=st.none() | st.floats(0, 1e9),
    slope=st.floats(-1e6, 1e6),
)
def test_wishes_stay_within_bounds_and_steps(
    count: int, busy: float, memory: float, cpu: float, lag: float | None, slope: float
) -> None:
    rule = policy(trainers={"min": 2, "max": 30}, sparse_ps={"min": 2, "max": 30})
    lags = always(None) if lag is None else lambda s: max(0.0, lag + slope * s)
    signals = {"busy": always(busy), "memory": always(memory), "cpu": always(cpu), "lag": lags}
    for found in wish(signals, trainers=count, sparse_ps=count, rule=rule).values():
        assert 2 <= found.replicas <= 30
        if 2 <= count <= 30:
            assert math.ceil(count / 2) <= found.replicas <= 2 * count


@given(count=st.integers(1, 1000), load=st.floats(1.0, 2.0, exclude_min=True) | st.floats(0, LOW))
def test_a_change_never_asks_for_the_next_one(count: int, load: float) -> None:
    """The work stays the same: what the new number makes of it lies in the dead band, or nothing
    can be changed further.
    """
    rule = policy(sparse_ps={"max": 1024, "memory": 0.5})
    first = wish({"memory": always(load / 2)}, sparse_ps=count, rule=rule)[Role.SPARSE_PS]
    after = count * load / first.replicas
    second = wish({"memory": always(after / 2)}, sparse_ps=first.replicas, rule=rule)
    if count // 2 < first.replicas < 2 * count and first.replicas != math.ceil(count / 2):
        assert second[Role.SPARSE_PS].replicas == first.replicas


class Job:
    """A queue that `trainers` read at `each` messages a second while `arriving(t)` come."""

    def __init__(self, arriving: Callable[[float], float], each: float) -> None:
        self.arriving, self.each, self.lag = arriving, each, 0.0

    def pass_time(self, now: float, seconds: float, trainers: int) -> Observation:
        can_read = self.each * trainers * seconds
        self.lag += self.arriving(now) * seconds
        read = min(self.lag, can_read)
        self.lag -= read
        return Observation(now, busy=read / can_read if can_read else None, lag=self.lag)


def simulate(job: Job, seconds: int, rule: Autoscale, tick: int) -> list[tuple[int, int]]:
    """(time, trainers) of every change; a look each `tick` seconds. A change costs 30 s in which
    nothing is read.
    """
    count, changed, changes = 1, -LATER, []
    seen: list[Observation] = []
    for now in range(0, seconds, tick):
        if now - changed < 30:
            job.pass_time(now, tick, trainers=0)
            continue
        seen = [*seen[-int(rule.window / tick) :], job.pass_time(now, tick, count)]
        found = decide(rule, seen, {Role.TRAINER: count, Role.SPARSE_PS: 1}, now, changed)
        if found and found[Role.TRAINER].replicas != count:
            count, changed, seen = found[Role.TRAINER].replicas, float(now), []
            changes.append((now, count))
    return changes


def test_a_steady_stream_ends_in_a_number_that_keeps_up_and_stays() -> None:
    job = Job(lambda _: 1_000.0, each=300.0)
    rule = policy(trainers={"max": 16, "lag": 500, "catch_up": 120})
    changes = simulate(job, 3_600, rule, tick=1)
    assert [count for _, count in changes[:2]] == [2, 4]
    assert all(4 <= count <= 7 for _, count in changes[1:])
    assert changes[-1][0] < 1_200, "then it stays"
    assert job.lag < 500


def test_a_day_costs_few_changes() -> None:
    """Traffic between 200 and 1,800 messages a second over 24 hours."""
    job = Job(lambda t: 1_000 - 800 * math.cos(2 * math.pi * t / 86_400), each=300.0)
    rule = Autoscale.model_validate({"trainers": {"max": 16}, "window": 120, "cooldown": 600})
    changes = simulate(job, 86_400, rule, tick=10)
    counts = [count for _, count in changes]
    assert 6 <= max(counts) <= 12 and counts[-1] <= 4
    assert len(changes) <= 14
    assert job.lag < 10_000
