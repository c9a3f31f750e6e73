"""Ranks that die and are taken over: what barrier and ledger do with them."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from ps_service.server.barrier import Fenced, StepBarrier, StepLedger
from services.kit.errors import Conflict, DeadlineExceeded

WAIT = 5.0


class Rig:
    """A barrier that notes which ranks took part in each step, and threads to wait in it."""

    def __init__(self, members: int, timeout: float = WAIT) -> None:
        self.steps: list[list[int]] = []
        self.barrier: StepBarrier[str, int] = StepBarrier(range(members), self._apply, timeout)
        self.pool = ThreadPoolExecutor(8)

    def push(self, rank: int, step: int, incarnation: int = 0) -> Future[Any]:
        return self.pool.submit(self.barrier.arrive, rank, step, "", incarnation)

    def waiting(self, count: int) -> None:
        """Returns when so many contributions are there."""
        pause = threading.Event()
        while len(self.barrier._arrived) < count:
            pause.wait(0.005)

    def _apply(self, given: list[tuple[int, str]]) -> int:
        self.steps.append([rank for rank, _ in given])
        return len(self.steps)


def test_the_others_go_on_without_a_dead_rank_and_with_its_successor() -> None:
    rig = Rig(3)
    pushes = [rig.push(0, 1), rig.push(1, 1)]
    rig.waiting(2)
    rig.barrier.expel(2, incarnation=1)
    assert [p.result(WAIT).result for p in pushes] == [1, 1]
    assert rig.barrier.remaining == 3, "its data is not finished"
    assert rig.barrier.join(2, step=0, incarnation=1) == 2
    pushes = [rig.push(0, 2), rig.push(1, 2)]
    rig.waiting(2)
    assert not any(p.done() for p in pushes), "the successor takes part from step 2 on"
    rig.push(2, 2, incarnation=1).result(WAIT)
    assert [p.result(WAIT).result for p in pushes] == [2, 2]
    assert rig.steps == [[0, 1], [0, 1, 2]]


def test_what_a_dead_rank_gave_to_the_pending_step_is_dropped() -> None:
    """Its range is sent again by the successor: it must not count twice."""
    rig = Rig(2)
    lost = rig.push(1, 1)
    rig.waiting(1)
    rig.barrier.expel(1, incarnation=1)
    with pytest.raises(Conflict, match="superseded"):
        lost.result(WAIT)
    rig.push(0, 1).result(WAIT)
    assert rig.steps == [[0]]


def test_a_replaced_incarnation_is_fenced_in_every_verb() -> None:
    rig = Rig(2)
    rig.barrier.join(1, step=0, incarnation=3)
    for late in (
        lambda: rig.barrier.arrive(1, 1, "", 2),
        lambda: rig.barrier.leave(1, 2),
        lambda: rig.barrier.join(1, 0, 2),
    ):
        with pytest.raises(Fenced, match="incarnation 2 of rank 1 calls, the present one is 3"):
            late()
    rig.barrier.expel(1, incarnation=3)  # says what is known
    rig.push(0, 1)
    rig.push(1, 1, incarnation=3).result(WAIT)
    assert rig.steps == [[0, 1]]


def test_a_successor_that_names_a_later_step_lets_the_others_take_those_before() -> None:
    """As when another block is ahead by a step."""
    rig = Rig(2)
    rig.barrier.expel(1, incarnation=1)
    assert rig.barrier.join(1, step=0, incarnation=1) == 1
    others = rig.push(0, 1)
    rig.waiting(1)
    assert not others.done()
    joined = rig.pool.submit(rig.barrier.join, 1, 2, 1)
    assert others.result(WAIT).result == 1
    assert joined.result(WAIT) == 2
    rig.push(0, 2)
    rig.push(1, 2, incarnation=1).result(WAIT)
    assert rig.steps == [[0], [0, 1]]


def test_a_step_that_nobody_takes_part_in_is_passed_over() -> None:
    rig = Rig(1)
    rig.push(0, 1).result(WAIT)
    rig.barrier.expel(0, incarnation=1)
    assert rig.barrier.join(0, step=5, incarnation=1) == 5
    assert rig.push(0, 5, incarnation=1).result(WAIT).result == 2
    assert rig.barrier.last_step == 5
    with pytest.raises(Conflict, match="its next step is 6"):
        rig.barrier.arrive(0, 4, "", 1)


def test_joining_has_a_deadline_and_needs_a_known_rank() -> None:
    rig = Rig(2, timeout=0.1)
    with pytest.raises(DeadlineExceeded, match="step 3 was not applied within"):
        rig.barrier.join(1, step=4, incarnation=1)
    with pytest.raises(Conflict, match="rank 7 joins"):
        rig.barrier.join(7, step=0, incarnation=1)


def test_a_finished_rank_that_died_counts_until_its_successor_has_finished_too() -> None:
    rig = Rig(2)
    assert rig.barrier.leave(1) == 1
    rig.barrier.expel(1, incarnation=1)
    assert rig.barrier.remaining == 2
    rig.barrier.join(1, step=0, incarnation=1)
    assert rig.barrier.leave(1, incarnation=1) == 1


def test_the_ledger_goes_on_where_a_successor_says() -> None:
    ledger = StepLedger(range(2))
    assert ledger.apply(0, 1, lambda: "a") == "a"
    ledger.leave(0)
    ledger.expel(0, incarnation=4)
    assert ledger.remaining == 2
    assert ledger.join(0, step=9, incarnation=4) == 9
    for late in (lambda: ledger.apply(0, 2, str), lambda: ledger.leave(0)):
        with pytest.raises(Fenced):
            late()
    assert ledger.apply(0, 9, lambda: "b", 4) == "b"
    assert ledger.apply(0, 9, lambda: "c", 4) is None
    assert ledger.join(0, step=9, incarnation=4) == 10, "a late claim takes nothing back"
    assert ledger.last_step == 9
    with pytest.raises(Fenced):
        ledger.join(0, step=9, incarnation=3)


def test_expelling_waits_for_the_step_that_is_being_applied() -> None:
    ledger, applying, go_on = StepLedger(range(1)), threading.Event(), threading.Event()

    def slow() -> bool:
        applying.set()
        return go_on.wait(WAIT)

    with ThreadPoolExecutor(2) as pool:
        push = pool.submit(ledger.apply, 0, 1, slow)
        assert applying.wait(WAIT)
        expelled = pool.submit(ledger.expel, 0, 1)
        assert not expelled.done()
        go_on.set()
        assert push.result(WAIT)
        expelled.result(WAIT)
