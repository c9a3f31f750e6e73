"""When dense pushes reach a block, one class for each pace: together with those of the other
trainers (modes sync and hybrid), on arrival (async), or as the outcome of local steps (kstep).

They hold the rule of the mode and the count of the trainers' steps; the block, the wire and
snapshots are the servicer's.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ps_service import _native, codec, halves
from ps_service.ranges import BatchRange
from ps_service.server.assignment import Assignment, Pace
from ps_service.server.barrier import StepBarrier, StepLedger
from ps_service.server.metrics import DenseMetrics
from ps_service.server.ranges import RangeTable
from services.kit.telemetry import timed
from services.wire import ps_pb2

Floats = NDArray[np.float32]
Part = TypeVar("Part")  # what one trainer gives
Reply = TypeVar("Reply")  # what all are told


class Target(Protocol):
    """What pushes change."""

    @property
    def block(self) -> _native.DenseBlock:
        """The parameters and the optimizer's state."""

    @property
    def ranges(self) -> RangeTable:
        """The ranges of source rows that the block has taken in."""


TargetOf = Callable[[], Target]  # once it is configured


@dataclasses.dataclass(frozen=True)
class Gradient:
    """One trainer's validated push."""

    samples: int
    incarnation: int
    range: BatchRange | None
    grads: Floats  # (n,) mean over the samples
    pause: bool
    read_version: int


@dataclasses.dataclass(frozen=True)
class Stepped:
    """What a trainer is told after its push."""

    values: bytes
    version: int
    pause: bool


@dataclasses.dataclass(frozen=True)
class LocalSteps:
    """One trainer's validated part of a merge; see DenseMergeRequest."""

    steps: int
    samples: int
    change: Floats  # (n,)
    roots: Floats  # (n,)
    momentum: Floats  # (n,), or (0,) where it is not given
    pause: bool
    leaving: bool


class _AtBarrier(abc.ABC, Generic[Part, Reply]):
    """Everybody waits for everybody, once a step or once a merge."""

    def __init__(
        self, ranks: Sequence[int], target: TargetOf, metrics: DenseMetrics, barrier_seconds: float
    ) -> None:
        self._target, self._metrics = target, metrics
        self._barrier: StepBarrier[Part, Reply] = StepBarrier(ranks, self._apply, barrier_seconds)

    @property
    def remaining(self) -> int:
        """Trainers still taking steps."""
        return self._barrier.remaining

    @property
    def last_step(self) -> int:
        """The last common step or merge: the same on all blocks while the trainers stand still."""
        return self._barrier.last_step

    def leave(self, rank: int, incarnation: int) -> int:
        """See `StepBarrier.leave`."""
        return self._barrier.leave(rank, incarnation)

    def join(self, rank: int, step: int, incarnation: int) -> int:
        """See `StepBarrier.join`."""
        return self._barrier.join(rank, step, incarnation)

    def expel(self, rank: int, incarnation: int) -> None:
        """See `StepBarrier.expel`."""
        self._barrier.expel(rank, incarnation)

    def close(self) -> None:
        """Ends all waits with Unavailable."""
        self._barrier.close()

    def _arrive(self, rank: int, number: int, part: Part, incarnation: int) -> Reply:
        """Waits for the others. A repeated part gets the reply of the first."""
        with timed(self._metrics.barrier):
            outcome = self._barrier.arrive(rank, number, part, incarnation)
        if outcome.duplicate:
            self._metrics.duplicate_pushes.inc()
        return outcome.result

    @abc.abstractmethod
    def _apply(self, parts: list[tuple[int, Part]]) -> Reply:
        """Takes [(rank, part)], in rank order, into the block."""


class Together(_AtBarrier[Gradient, Stepped]):
    """Modes sync and hybrid: a step's gradient is the mean over the samples of all trainers, summed
    in rank order, so it has the same bits however the array is divided into blocks.
    """

    by_range = True  # the block's range table is that of the trainers' positions

    def push(self, rank: int, step: int, gradient: Gradient) -> Stepped:
        """Returns once the gradients of all trainers are applied; a repeated push gets the reply of
        the first, `pause` included. Raises what `RangeTable.apply` does.
        """
        if gradient.range is not None:
            self._target().ranges.check(gradient.range, gradient.incarnation)
        return self._arrive(rank, step, gradient, gradient.incarnation)

    def _apply(self, parts: list[tuple[int, Gradient]]) -> Stepped:
        """A step without any samples changes nothing. A range that a trainer which died had given
        to this block before counts no second time.
        """
        block, ranges = self._target().block, self._target().ranges
        fresh = [g for _, g in parts if ranges.take(g)]
        total = sum(g.samples for g in fresh)
        if total > 0:
            with timed(self._metrics.apply):
                block.apply(_mean([(g.samples / total, g.grads) for g in fresh]))
        values = codec.pack_floats(block.values())
        return Stepped(values, block.step, all(g.pause for _, g in parts))


class OnArrival:
    """Mode async: each gradient is a step of its own, taken when it comes. A trainer that was asked
    to pause stops after its own step: nothing of it is under way then.
    """

    by_range = True

    def __init__(self, ranks: Sequence[int], target: TargetOf, metrics: DenseMetrics) -> None:
        self._target, self._metrics = target, metrics
        self._ledger = StepLedger(ranks)

    @property
    def remaining(self) -> int:
        """Trainers still taking steps."""
        return self._ledger.remaining

    @property
    def last_step(self) -> int:
        """The highest step any trainer has taken."""
        return self._ledger.last_step

    def leave(self, rank: int, incarnation: int) -> int:
        """See `StepLedger.leave`."""
        return self._ledger.leave(rank, incarnation)

    def join(self, rank: int, step: int, incarnation: int) -> int:
        """See `StepLedger.join`; nobody is waited for. A successor counts on from the rank's last
        step, so that schedules don't begin anew.
        """
        return self._ledger.join(rank, max(step, self._ledger.reached(rank) + 1), incarnation)

    def expel(self, rank: int, incarnation: int) -> None:
        """See `StepLedger.expel`."""
        self._ledger.expel(rank, incarnation)

    def close(self) -> None:
        """Nobody waits for others here."""

    def push(self, rank: int, step: int, gradient: Gradient) -> Stepped:
        """Applies the gradient unless its step or its range is a repeat; either way tells the
        present values. Raises what `RangeTable.apply` does.
        """
        block, ranges = self._target().block, self._target().ranges

        def apply() -> bool:
            if gradient.samples > 0:
                self._metrics.staleness.observe(max(0, block.step - gradient.read_version))
                with timed(self._metrics.apply):
                    block.apply(gradient.grads)
            return True

        def apply_range() -> bool | None:
            rows, incarnation = gradient.range, gradient.incarnation
            if rows is None:
                return apply()
            return ranges.apply(rows, incarnation, gradient.samples, apply)

        if self._ledger.apply(rank, step, apply_range, gradient.incarnation) is None:
            self._metrics.duplicate_pushes.inc()
        # Others may step between these two lines: staleness is then told too high, never too low.
        version = block.step
        return Stepped(codec.pack_floats(block.values()), version, gradient.pause)


class Merged(_AtBarrier[LocalSteps, ps_pb2.DenseMergeReply]):
    """Mode kstep: parameters and second moments of all trainers are averaged, each trainer with the
    weight of its samples since the last merge. The rule is in docs/training-modes.md.
    """

    by_range = False  # a merge is of many ranges; rounds alone tell a repeat, and no dead trainer
    # is replaced in this mode

    def merge(
        self, rank: int, number: int, part: LocalSteps, incarnation: int
    ) -> ps_pb2.DenseMergeReply:
        """Returns once the parts of all trainers are merged; a repeat gets the first reply."""
        return self._arrive(rank, number, part, incarnation)

    def _apply(self, parts: list[tuple[int, LocalSteps]]) -> ps_pb2.DenseMergeReply:
        given = [part for _, part in parts]
        block, weights = self._target().block, _weights([p.samples for p in given])
        weighted = list(zip(weights, given, strict=True))
        with timed(self._metrics.apply):
            mean = _mean([(w, p.change) for w, p in weighted])
            change = halves.pack(mean)
            beta2 = block.optimizer_params["beta2"]
            block.merge(
                halves.unpack(change, "change", len(mean)),  # what the trainers will see of it
                _mean([(w, np.square(p.roots)) for w, p in weighted]),
                _mean_momentum(given),
                keep=sum(w * beta2**p.steps for w, p in weighted),
                steps=max(p.steps for p in given),
            )
        self._metrics.merges.inc()
        self._metrics.drift.set(_drift(weighted, mean))
        going_on = [p for p in given if not p.leaving]
        pause = bool(going_on) and all(p.pause for p in going_on)
        return ps_pb2.DenseMergeReply(
            change=change,
            roots=halves.pack(block.roots()),
            version=block.step,
            pause=pause,
            momentum=codec.pack_floats(block.momentum()) if pause else b"",
        )


def _weights(samples: Sequence[int]) -> list[float]:
    """Shares of the samples; equal ones where there are none."""
    total = sum(samples)
    return [s / total if total > 0 else 1 / len(samples) for s in samples]


def _mean(weighted: Sequence[tuple[float, Floats]]) -> Floats:
    """Σ weight · values in float32, in this order; the values themselves if they are alone."""
    weight, values = weighted[0]
    if len(weighted) == 1 and weight == 1:
        return values
    mean: Floats = values * np.float32(weight)
    for weight, values in weighted[1:]:
        mean += values * np.float32(weight)
    return mean


def _mean_momentum(parts: Sequence[LocalSteps]) -> Floats:
    """Of the trainers that give theirs; (0,) if none does."""
    given = [p for p in parts if len(p.momentum)]
    if not given:
        return np.zeros(0, np.float32)
    weights = _weights([p.samples for p in given])
    return _mean([(w, p.momentum) for w, p in zip(weights, given, strict=True)])


def _drift(weighted: Sequence[tuple[float, LocalSteps]], mean: Floats) -> float:
    """How far the trainers went apart: RMS distance of their changes from the mean one, over the
    RMS of that; 0 where nothing moved.
    """
    length = float(np.linalg.norm(mean))
    spread = sum(w * float(np.linalg.norm(p.change - mean)) ** 2 for w, p in weighted)
    return math.sqrt(spread) / length if length > 0 else 0.0


DensePace = Together | OnArrival | Merged


def pace_of(
    assignment: Assignment, target: TargetOf, metrics: DenseMetrics, barrier_seconds: float
) -> DensePace:
    """The pace of the assignment's mode."""
    ranks = range(assignment.trainers)
    if assignment.pace is Pace.ON_ARRIVAL:
        return OnArrival(ranks, target, metrics)
    if assignment.pace is Pace.MERGED:
        return Merged(ranks, target, metrics, barrier_seconds)
    return Together(ranks, target, metrics, barrier_seconds)
