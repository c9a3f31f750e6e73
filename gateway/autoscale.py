"""How many trainers and sparse-PS a job should have: a pure function of what was observed.

Every kind of process has a *load*, the share of what the present replicas can do: above 1 they are
too few, below `LOW` too many, and a change aims at `GOAL`. The gap between the two is the
hysteresis: a change of scale never leads to a load that asks for the next one. A reason must hold
in the whole window, and after a change nothing changes for the cool-down.

- trainers: busy share = 1 - share of time spent waiting for data, mean over the trainers. With more
  lag than `lag` that, at the window's pace, will not be gone within `catch_up`, trainers that are
  mostly busy are `BEHIND`. Trainers that mostly wait are not the bottleneck: more of them would
  wait too. Without a stream (files) there is no lag, and trainers only become fewer.
- sparse-PS: memory and CPU of the fullest shard, each over the share that the spec allows; the
  larger counts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

from gateway.progress import numbers
from services.api.autoscale import Autoscale, SparsePsScaling, TrainerScaling
from services.kit.discovery import Member, Role

LOW, GOAL = 0.5, 0.75
BEHIND = (
    1.25  # the load of trainers that fall behind: how far can't be told, so go on by two thirds
)
_MOST = 2  # times as many, or as few, in one change
_COMPLETE = 0.9  # of the window must be observed


@dataclasses.dataclass(frozen=True)
class Observation:
    """The job at `time` (seconds). None: no process says it."""

    time: float
    busy: float | None = None  # share of the trainers' time not spent waiting for data
    lag: float | None = None  # messages of the stream not read yet, all trainers
    memory: float | None = None  # of the sparse-PS that uses most of its limit
    cpu: float | None = None


@dataclasses.dataclass(frozen=True)
class Wish:
    """Replicas wanted of one role, and why. `load` as the module explains it."""

    replicas: int
    load: float
    reason: str


def observe(members: Iterable[Member], now: float) -> Observation:
    """What the job's members say about themselves at the time `now`."""
    statuses: dict[Role, list[dict[str, object]]] = {role: [] for role in Role}
    for member in members:
        statuses[member.role].append(member.status)
    waits = numbers(statuses[Role.TRAINER], "wait_share")
    lags = numbers(statuses[Role.TRAINER], "lag")
    shards = statuses[Role.SPARSE_PS]
    return Observation(
        time=now,
        busy=1.0 - min(1.0, sum(waits) / len(waits)) if waits else None,
        lag=sum(lags) if lags else None,
        memory=max(numbers(shards, "memory_share"), default=None),
        cpu=max(numbers(shards, "cpu_share"), default=None),
    )


def decide(
    policy: Autoscale,
    history: Sequence[Observation],
    present: dict[Role, int],
    now: float,
    changed: float,
) -> dict[Role, Wish]:
    """What is wanted of each role that the policy scales, for its `present` number of replicas.

    `history` is in order of time and of these numbers of replicas only; `changed` is when they were
    last asked for. Where nothing is to change, the wish is the present number. A role about which
    too little was observed is left out.
    """
    window = [o for o in history if now - o.time <= policy.window]
    if not window or now - window[0].time < _COMPLETE * policy.window:
        return {}
    cooling = now - changed < policy.cooldown
    wishes: dict[Role, Wish] = {}
    if policy.trainers is not None:
        loads = _trainer_loads(policy.trainers, window)
        if loads:
            count = present[Role.TRAINER]
            wishes[Role.TRAINER] = _wish(count, policy.trainers, loads, cooling)
    if policy.sparse_ps is not None:
        loads = _shard_loads(policy.sparse_ps, window)
        if loads:
            count = present[Role.SPARSE_PS]
            wishes[Role.SPARSE_PS] = _wish(count, policy.sparse_ps, loads, cooling)
    return wishes


def _wish(
    present: int,
    bounds: TrainerScaling | SparsePsScaling,
    loads: Sequence[tuple[float, str]],
    cooling: bool,
) -> Wish:
    """`loads` of the window with what each comes from."""
    lowest, highest = min(loads), max(loads)
    # The mildest observation decides: a reason holds in the whole window, or not at all.
    load, why = lowest if lowest[0] > 1 else highest
    wanted = present
    if load > 1 and lowest[0] > 1:
        wanted = min(math.ceil(present * load / GOAL), present * _MOST)
    elif load < LOW:
        wanted = max(math.ceil(present * load / GOAL), math.ceil(present / _MOST))
    bounded = min(max(wanted, bounds.min), bounds.max)
    if cooling or bounded == present:
        return Wish(present, load, "cooling down" if cooling else why)
    if bounded != wanted and wanted == present:
        why = f"{present} is outside min {bounds.min}, max {bounds.max}"
    return Wish(bounded, load, why)


def _trainer_loads(
    bounds: TrainerScaling, window: Sequence[Observation]
) -> list[tuple[float, str]]:
    busy = [o.busy for o in window if o.busy is not None]
    if not busy:
        return []
    lags = [(o.time, o.lag) for o in window if o.lag is not None]
    if lags and min(lag for _, lag in lags) > bounds.lag:
        left = _time_left(lags)
        lag = lags[-1][1]
        if left > bounds.catch_up and min(busy) >= LOW:
            return [(BEHIND, f"{lag:.0f} messages behind and {_pace(left)}")]
        # They have something to catch up with, so they are not too many.
        return [(max(b, LOW), f"busy {b:.0%}, catching up with {lag:.0f} messages") for b in busy]
    return [(b, f"busy {b:.0%} of the time") for b in busy]


def _time_left(lags: Sequence[tuple[float, float]]) -> float:
    """Seconds until the lag is gone at the pace of the window; infinite when it doesn't shrink."""
    (start, before), (end, after) = lags[0], lags[-1]
    pace = (before - after) / (end - start) if end > start else 0.0
    return after / pace if pace > 0 else math.inf


def _pace(left: float) -> str:
    return "not catching up" if math.isinf(left) else f"{left:.0f} s from catching up"


def _shard_loads(bounds: SparsePsScaling, window: Sequence[Observation]) -> list[tuple[float, str]]:
    named: list[tuple[str, float, Callable[[Observation], float | None]]] = [
        ("memory", bounds.memory, lambda o: o.memory),
        ("CPU", bounds.cpu, lambda o: o.cpu),
    ]
    found = []
    for observation in window:
        shares = [(n, allowed, of(observation)) for n, allowed, of in named]
        loads = [
            (share / allowed, f"{n} of the fullest shard {share:.0%} of its limit")
            for n, allowed, share in shares
            if share is not None
        ]
        if loads:
            found.append(max(loads))
    return found
