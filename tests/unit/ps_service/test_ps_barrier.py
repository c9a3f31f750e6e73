"""Exactly-once steps: StepBarrier and StepLedger with real threads."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from ps_service.server.barrier import Outcome, StepBarrier, StepLedger
from services.kit.errors import Conflict, DeadlineExceeded, EmbermeshError, Unavailable


class Recorder:
    """An `apply` that keeps what it was given and answers how often it was called."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[int, str]]] = []

    def __call__(self, merged: list[tuple[int, str]]) -> int:
        self.calls.append(merged)
        return len(self.calls)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as executor:
        yield executor


def make(members: int, timeout: float = 10.0) -> tuple[StepBarrier[str, int], Recorder]:
    recorder = Recorder()
    return StepBarrier(range(members), recorder, timeout), recorder


def until_waiting(barrier: StepBarrier[str, int], ranks: set[int]) -> None:
    """Waits until exactly `ranks` have given their contribution to the pending step."""
    while True:
        with barrier._cond:
            if barrier._arrived.keys() == ranks:
                return
        threading.Event().wait(0.001)


def test_contributions_are_merged_in_rank_order_whatever_the_arrival_order(pool) -> None:
    barrier, recorder = make(3)
    waiting = []
    for rank in (2, 0, 1):
        waiting.append(pool.submit(barrier.arrive, rank, 1, f"g{rank}"))
        if rank != 1:
            until_waiting(barrier, {2, 0} if rank == 0 else {2})
    assert [f.result(10) for f in waiting] == [Outcome(1, duplicate=False)] * 3
    assert recorder.calls == [[(0, "g0"), (1, "g1"), (2, "g2")]]


def test_many_steps_with_racing_threads_apply_each_step_once() -> None:
    barrier, recorder = make(4)
    steps = 200
    errors: list[BaseException] = []

    def train(rank: int) -> None:
        try:
            for step in range(1, steps + 1):
                assert barrier.arrive(rank, step, f"{rank}@{step}").result == step
                if random.random() < 0.2:  # a retry whose first reply was lost
                    again = barrier.arrive(rank, step, "not applied")
                    assert again == Outcome(step, duplicate=True)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train, args=(r,)) for r in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not errors
    assert recorder.calls == [[(r, f"{r}@{s}") for r in range(4)] for s in range(1, steps + 1)]


def test_duplicate_gets_the_first_result(pool) -> None:
    barrier, recorder = make(1)
    assert barrier.arrive(0, 1, "a") == Outcome(1, duplicate=False)
    assert barrier.arrive(0, 1, "b") == Outcome(1, duplicate=True)
    assert recorder.calls == [[(0, "a")]]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (0, "rank 0 is behind: it pushes step 0, its next step is 3"),
        (1, "rank 0 is behind: it pushes step 1, its next step is 3"),
        (4, "rank 0 is ahead: it pushes step 4, its next step is 3"),
    ],
)
def test_out_of_step_is_refused(step: int, message: str) -> None:
    barrier, _ = make(1)
    barrier.arrive(0, 1, "")
    barrier.arrive(0, 2, "")
    with pytest.raises(Conflict, match=message):
        barrier.arrive(0, step, "")


def test_step_zero_of_a_fresh_barrier_is_refused() -> None:
    barrier, _ = make(1)
    with pytest.raises(Conflict, match="behind"):
        barrier.arrive(0, 0, "")


def test_stranger_is_refused() -> None:
    barrier, _ = make(2)
    with pytest.raises(Conflict, match=r"rank 7 pushes step 1 but is not a member.*\[0, 1\]"):
        barrier.arrive(7, 1, "")


def test_leave_releases_those_who_wait(pool) -> None:
    barrier, recorder = make(3)
    waiting = [pool.submit(barrier.arrive, r, 1, f"g{r}") for r in (0, 1)]
    until_waiting(barrier, {0, 1})
    assert barrier.leave(2) == 2
    assert [f.result(10).result for f in waiting] == [1, 1]
    assert recorder.calls == [[(0, "g0"), (1, "g1")]]
    assert barrier.leave(2) == 2, "leaving twice is harmless"
    assert barrier.remaining == 2


def test_contribution_of_one_who_leaves_while_waiting_still_counts(pool) -> None:
    barrier, recorder = make(2)
    leaver = pool.submit(barrier.arrive, 1, 1, "last")
    until_waiting(barrier, {1})
    assert barrier.leave(1) == 1
    assert not recorder.calls, "rank 0 has not pushed yet"
    assert barrier.arrive(0, 1, "mine").result == 1
    assert leaver.result(10).result == 1
    assert recorder.calls == [[(0, "mine"), (1, "last")]]


def test_leaver_may_not_push_again() -> None:
    barrier, _ = make(2)
    barrier.leave(1)
    barrier.arrive(0, 1, "")
    with pytest.raises(Conflict, match="rank 1 pushes step 1 but is not a member"):
        barrier.arrive(1, 1, "")


def test_all_leave() -> None:
    barrier, recorder = make(2)
    assert [barrier.leave(0), barrier.leave(1)] == [1, 0]
    assert not recorder.calls


def test_members_leaving_at_random_never_block_the_rest() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        last = [rng.randrange(0, 12) for _ in range(5)]
        barrier, recorder = make(5)

        def train(rank: int, last: list[int] = last, barrier: StepBarrier = barrier) -> None:
            for step in range(1, last[rank] + 1):
                barrier.arrive(rank, step, "")
            barrier.leave(rank)

        with ThreadPoolExecutor(5) as executor:
            for future in [executor.submit(train, r) for r in range(5)]:
                future.result(10)
        expected = [[r for r in range(5) if last[r] >= s] for s in range(1, max(last) + 1)]
        assert [[r for r, _ in call] for call in recorder.calls] == expected


def test_deadline_names_the_missing_ranks() -> None:
    barrier, recorder = make(3, timeout=0.05)
    with pytest.raises(
        DeadlineExceeded, match=r"step 1: ranks \[1, 2\] did not push within 0.05 s"
    ):
        barrier.arrive(0, 1, "")
    assert not recorder.calls


def test_retry_of_a_waiting_push_replaces_it_at_once(pool) -> None:
    barrier, recorder = make(2, timeout=60)
    first = pool.submit(barrier.arrive, 0, 1, "first")
    until_waiting(barrier, {0})
    second: Future = pool.submit(barrier.arrive, 0, 1, "second")
    with pytest.raises(Conflict, match="rank 0 repeated step 1"):
        first.result(5)
    assert barrier.arrive(1, 1, "other") == Outcome(1, duplicate=False)
    assert second.result(10) == Outcome(1, duplicate=False)
    assert recorder.calls == [[(0, "second"), (1, "other")]]


def test_failed_application_reaches_everybody_and_stays(pool) -> None:
    def fail(merged: list[tuple[int, str]]) -> int:
        raise ValueError("disk on fire")

    barrier: StepBarrier[str, int] = StepBarrier(range(2), fail, 10.0)
    waiting = pool.submit(barrier.arrive, 0, 1, "")
    for arrive in (lambda: barrier.arrive(1, 1, ""), lambda: barrier.arrive(1, 1, "")):
        with pytest.raises(EmbermeshError, match=r"step 1 failed.*disk on fire"):
            arrive()
    with pytest.raises(EmbermeshError, match="disk on fire"):
        waiting.result(10)


def test_close_ends_waits(pool) -> None:
    barrier, _ = make(2)
    waiting = pool.submit(barrier.arrive, 0, 1, "")
    until_waiting(barrier, {0})
    barrier.close()
    with pytest.raises(Unavailable):
        waiting.result(10)
    with pytest.raises(Unavailable):
        barrier.arrive(1, 1, "")


def test_ledger_applies_each_step_once() -> None:
    ledger = StepLedger(range(2))
    pushes = [(0, 1, "a"), (0, 1, "again"), (1, 1, "b"), (0, 2, "c"), (0, 2, "again")]
    applied = []

    def act(value: str) -> str:
        applied.append(value)
        return value

    results = [ledger.apply(rank, step, partial(act, value)) for rank, step, value in pushes]
    assert results == ["a", None, "b", "c", None]
    assert applied == ["a", "b", "c"]


def test_ledger_does_not_count_a_failed_step() -> None:
    ledger = StepLedger(range(1))
    with pytest.raises(ZeroDivisionError):
        ledger.apply(0, 1, lambda: 1 // 0)
    assert ledger.apply(0, 1, lambda: "done") == "done"


@pytest.mark.parametrize(("step", "where"), [(0, "behind"), (1, "behind"), (4, "ahead")])
def test_ledger_refuses_out_of_step(step: int, where: str) -> None:
    ledger = StepLedger(range(1))
    ledger.apply(0, 1, str)
    ledger.apply(0, 2, str)
    with pytest.raises(Conflict, match=f"rank 0 is {where}: it pushes step {step}.*is 3"):
        ledger.apply(0, step, str)


def test_ledger_members() -> None:
    ledger = StepLedger(range(2))
    with pytest.raises(Conflict, match="rank 2 pushes step 1 but is not a member"):
        ledger.apply(2, 1, str)
    ledger.apply(1, 1, str)
    assert [ledger.leave(1), ledger.leave(1), ledger.leave(9)] == [1, 1, 1]
    assert ledger.apply(1, 1, str) is None, "a late repeat of its last step is still a duplicate"
    with pytest.raises(Conflict, match="has left after step 1"):
        ledger.apply(1, 2, str)


def test_ledger_repeat_waits_for_the_running_first_call(pool) -> None:
    ledger = StepLedger(range(1))
    entered, release = threading.Event(), threading.Event()

    def slow() -> str:
        entered.set()
        assert release.wait(10)
        return "done"

    first = pool.submit(ledger.apply, 0, 1, slow)
    assert entered.wait(10)
    repeat = pool.submit(ledger.apply, 0, 1, lambda: "twice")
    assert not repeat.done()
    release.set()
    assert first.result(10) == "done"
    assert repeat.result(10) is None
