"""Who has taken which step: exactly-once application of pushes, per trainer or for all trainers
together.

`StepBarrier` collects one contribution per member for a step, applies them once in rank order, then
lets everybody go on. `StepLedger` applies each trainer's steps on their own. Both number steps 1,
2, … inside a generation, answer a repeated step as a duplicate, and refuse a trainer that is out of
step. A rank may be taken over by another process, its next *incarnation*; both then refuse what
comes late from the one before (Fenced). They know nothing of tensors or gRPC.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar, cast

from services.kit.errors import Conflict, DeadlineExceeded, EmbermeshError, Unavailable

Contribution = TypeVar("Contribution")
Result = TypeVar("Result")


class Fenced(Conflict):
    """The caller has been replaced by a later incarnation; nothing it sends counts any more."""


@dataclasses.dataclass(frozen=True)
class Outcome(Generic[Result]):
    """What a step led to; a duplicate gets the result of the first application."""

    result: Result
    duplicate: bool


class StepBarrier(Generic[Contribution, Result]):
    """A barrier over member ranks, one step at a time.

    `apply` gets the step's [(rank, contribution)] in rank order. It runs once per step, on the
    thread of whoever completes the step and under the barrier's lock: members can't do anything
    else meanwhile. When it fails, that step's members and all later callers get its error, because
    the state behind it is unknown then.
    """

    def __init__(
        self,
        members: Iterable[int],
        apply: Callable[[list[tuple[int, Contribution]]], Result],
        timeout: float,
    ) -> None:
        self._members = dict.fromkeys(members, 1)  # rank -> first step it takes part in
        self._away: set[int] = set()  # ranks that died and have not been taken over
        self._incarnations = dict.fromkeys(self._members, 0)
        self._apply = apply
        self._timeout = timeout  # seconds a member waits for the others
        self._cond = threading.Condition()
        self._completed = 0  # last step applied
        self._result: Result | None = None  # of that step
        self._arrived: dict[int, Contribution] = {}  # for step `_completed` + 1
        self._attempts: dict[int, int] = {}  # rank -> calls for that step; the newest one waits
        self._failure: EmbermeshError | None = None

    @property
    def remaining(self) -> int:
        """Ranks that have not finished, those that are away included."""
        return len(self._members) + len(self._away)

    @property
    def last_step(self) -> int:
        """The last step applied; 0 before the first."""
        return self._completed

    def arrive(
        self, rank: int, step: int, contribution: Contribution, incarnation: int = 0
    ) -> Outcome[Result]:
        """Gives `rank`'s contribution to `step` and waits until the step is applied.

        A repeated call for the pending step replaces the earlier one, whose caller has given up.
        Raises Conflict for a rank that isn't a member or a step that is neither the last nor the
        next, Fenced for a replaced incarnation, DeadlineExceeded that names the missing ranks,
        Unavailable after `close`.
        """
        with self._cond:
            self._raise_failure()
            _check_incarnation(self._incarnations, rank, incarnation)
            if self._admit(rank, step):
                return Outcome(cast(Result, self._result), duplicate=True)
            attempt = self._attempts[rank] = self._attempts.get(rank, 0) + 1
            self._arrived[rank] = contribution
            if attempt > 1:
                self._cond.notify_all()  # the earlier call must see that it is replaced
            self._complete()
            return Outcome(self._await(rank, step, attempt), duplicate=False)

    def leave(self, rank: int, incarnation: int = 0) -> int:
        """`rank` takes no further step; those who wait for it go on. Idempotent. Returns the
        ranks that remain.

        What it gave to the pending step still counts. Raises Fenced for a replaced incarnation.
        """
        with self._cond:
            _check_incarnation(self._incarnations, rank, incarnation)
            self._members.pop(rank, None)
            self._complete()
            return self.remaining

    def expel(self, rank: int, incarnation: int) -> None:
        """Every incarnation of `rank` before `incarnation` is dead: those who wait for it go on,
        and what it gave to the pending step is dropped. Idempotent.
        """
        with self._cond:
            if incarnation > self._incarnations.get(rank, incarnation):
                self._incarnations[rank] = incarnation
                self._away.add(rank)
                self._members.pop(rank, None)
                self._arrived.pop(rank, None)
                self._attempts.pop(rank, None)
                self._cond.notify_all()
                self._complete()

    def join(self, rank: int, step: int, incarnation: int) -> int:
        """`rank` takes part from `step` or the pending step on, whichever is later. Returns that
        step, once the one before it is applied; no later step is applied without `rank`.

        Earlier incarnations are expelled. A second call may name a later step. Raises Conflict for
        an unknown rank, Fenced for a replaced incarnation, DeadlineExceeded when the others take
        too long.
        """
        if rank not in self._incarnations:
            raise Conflict(f"rank {rank} joins; the ranks are {sorted(self._incarnations)}")
        self.expel(rank, incarnation)
        with self._cond:
            self._raise_failure()
            _check_incarnation(self._incarnations, rank, incarnation)
            self._away.discard(rank)
            first = self._members[rank] = max(step, self._completed + 1)
            self._complete()
            deadline = time.monotonic() + self._timeout
            while self._completed < first - 1:
                self._raise_failure()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise DeadlineExceeded(
                        f"rank {rank} joins at step {first}; step {first - 1} was not applied "
                        f"within {self._timeout:g} s"
                    )
                self._cond.wait(left)
            return first

    def close(self) -> None:
        """Ends all waits, now and later, with Unavailable."""
        with self._cond:
            self._fail(Unavailable("the server is stopping"))

    def _admit(self, rank: int, step: int) -> bool:
        """Whether the step is a duplicate; Conflict when it is neither that nor the next one."""
        if rank not in self._members:
            raise Conflict(
                f"rank {rank} pushes step {step} but is not a member of the barrier; "
                f"members: {sorted(self._members)}"
            )
        expected = max(self._completed + 1, self._members[rank])
        if step == self._completed and step >= self._members[rank]:
            return True
        if step != expected:
            raise _out_of_step(rank, step, expected)
        return False

    def _complete(self) -> None:
        """Applies the pending step if every member is there. A step that nobody takes part in is
        passed over.
        """
        due = self._due()
        if self._members and not due and not self._arrived:
            self._completed = min(self._members.values()) - 1
            self._cond.notify_all()
        if self._failure or not self._arrived or not due <= self._arrived.keys():
            return
        try:
            self._result = self._apply(sorted(self._arrived.items(), key=lambda item: item[0]))
        except EmbermeshError as error:
            self._fail(error)
        except Exception as error:  # must reach the waiting threads too, not only this one
            self._fail(EmbermeshError(f"step {self._completed + 1} failed: {error!r}"))
        else:
            self._completed += 1
            self._arrived, self._attempts = {}, {}
            self._cond.notify_all()
            self._complete()

    def _due(self) -> set[int]:
        """Members that take part in the pending step."""
        return {rank for rank, first in self._members.items() if first <= self._completed + 1}

    def _await(self, rank: int, step: int, attempt: int) -> Result:
        deadline = time.monotonic() + self._timeout
        while self._completed < step:
            self._raise_failure()
            if self._attempts.get(rank) != attempt:
                raise Conflict(f"rank {rank} repeated step {step}; this call of it is superseded")
            left = deadline - time.monotonic()
            if left <= 0:
                missing = sorted(self._due() - self._arrived.keys())
                raise DeadlineExceeded(
                    f"step {step}: ranks {missing} did not push within {self._timeout:g} s"
                )
            self._cond.wait(left)
        return cast(Result, self._result)

    def _fail(self, error: EmbermeshError) -> None:
        self._failure = self._failure or error
        self._cond.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))


class StepLedger:
    """Applies every member's steps once and in order; members don't wait for each other."""

    def __init__(self, members: Iterable[int]) -> None:
        self._locks = {rank: threading.Lock() for rank in members}
        self._steps = dict.fromkeys(self._locks, 0)  # rank -> last step of its incarnation
        self._reached = dict.fromkeys(self._locks, 0)  # rank -> highest step of any incarnation
        self._incarnations = dict.fromkeys(self._locks, 0)
        self._left: set[int] = set()

    @property
    def remaining(self) -> int:
        """Members still taking steps."""
        return len(self._locks) - len(self._left)

    @property
    def last_step(self) -> int:
        """The highest step any member has taken; 0 before the first."""
        return max(self._reached.values(), default=0)

    def reached(self, rank: int) -> int:
        """The highest step that any process has taken under `rank`; 0 before the first."""
        return self._reached.get(rank, 0)

    def apply(
        self, rank: int, step: int, action: Callable[[], Result | None], incarnation: int = 0
    ) -> Result | None:
        """`action()` if `step` is `rank`'s next one, None if it is a repeat of its last one.

        The step counts only when `action` succeeds; a repeat that comes meanwhile waits for it.
        Raises Conflict for a rank that isn't a member or a step that is neither the last nor the
        next, Fenced for a replaced incarnation.
        """
        with self._lock(rank, step):
            _check_incarnation(self._incarnations, rank, incarnation)
            last = self._steps[rank]
            if step == last and step > 0:
                return None
            if rank in self._left:
                raise Conflict(f"rank {rank} pushes step {step} but has left after step {last}")
            if step != last + 1:
                raise _out_of_step(rank, step, last + 1)
            result = action()
            self._steps[rank] = step
            self._reached[rank] = max(self._reached[rank], step)
            return result

    def leave(self, rank: int, incarnation: int = 0) -> int:
        """`rank` takes no further step. Idempotent. Returns the members that remain.

        Raises Fenced for a replaced incarnation.
        """
        if rank in self._locks:
            with self._locks[rank]:
                _check_incarnation(self._incarnations, rank, incarnation)
                self._left.add(rank)
        return self.remaining

    def expel(self, rank: int, incarnation: int) -> None:
        """Every incarnation of `rank` before `incarnation` is dead; returns when a step of it that
        is being applied has ended. Idempotent.
        """
        if rank in self._locks:
            with self._locks[rank]:
                if incarnation > self._incarnations[rank]:
                    self._incarnations[rank] = incarnation
                    self._steps[rank] = 0
                    self._left.discard(rank)

    def join(self, rank: int, step: int, incarnation: int) -> int:
        """`rank` goes on with `step`, or behind what this incarnation has taken; returns that step.
        Earlier incarnations are expelled.

        Raises Conflict for an unknown rank, Fenced for a replaced incarnation.
        """
        self.expel(rank, incarnation)
        with self._lock(rank, step):
            _check_incarnation(self._incarnations, rank, incarnation)
            self._steps[rank] = max(self._steps[rank], step - 1)
            return self._steps[rank] + 1

    def _lock(self, rank: int, step: int) -> threading.Lock:
        if rank not in self._locks:
            raise Conflict(
                f"rank {rank} pushes step {step} but is not a member; "
                f"members: {sorted(self._locks)}"
            )
        return self._locks[rank]


def _check_incarnation(present: Mapping[int, int], rank: int, incarnation: int) -> None:
    if incarnation != present.get(rank, incarnation):
        raise Fenced(
            f"incarnation {incarnation} of rank {rank} calls, the present one is {present[rank]}"
        )


def _out_of_step(rank: int, step: int, expected: int) -> Conflict:
    where = "ahead" if step > expected else "behind"
    return Conflict(f"rank {rank} is {where}: it pushes step {step}, its next step is {expected}")
