"""The pause gate: boundary, hold, expiry, the verdict of Resume, a trainer past its last step."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from services.api.manifest import PositionEntry
from services.kit.errors import Conflict, DeadlineExceeded, InvalidInput, Unavailable
from services.wire import trainer_pb2
from trainer_service.control import PauseGate, Stand, TrainerServicer

STAND = Stand(12, 3_072, (PositionEntry(partition="lane-03", major=1, minor=63),))
WAIT = 5.0


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def pausing(
    pool: ThreadPoolExecutor, gate: PauseGate, token: str = "a", hold: float = WAIT
) -> Future:
    """A Pause call that has arrived."""
    future = pool.submit(gate.pause, token, hold, WAIT)
    until(lambda: gate.requested() == token)
    return future


def until(condition: Any) -> None:
    done = threading.Event()
    for _ in range(500):
        if condition():
            return
        done.wait(0.01)
    raise AssertionError("condition did not come true")


def test_pause_is_answered_with_the_stand_and_resume_ends_it(pool: ThreadPoolExecutor) -> None:
    gate = PauseGate()
    assert gate.requested() == ""
    answer = pausing(pool, gate)
    held = pool.submit(gate.hold, "a", STAND)
    assert answer.result(WAIT) is STAND
    assert gate.requested() == ""
    assert not held.done()
    assert gate.resume("a")
    assert held.result(WAIT) >= 0
    assert gate.resume("a"), "a repeated Resume must not tell another story"
    assert not gate.resume("b")


def test_expired_pause_says_so(pool: ThreadPoolExecutor) -> None:
    gate = PauseGate()
    answer = pausing(pool, gate, hold=0.05)
    assert pool.submit(gate.hold, "a", STAND).result(WAIT) >= 0.05
    assert answer.result(WAIT) is STAND
    assert not gate.resume("a")
    assert not gate.resume("a")


def test_repeated_pause_joins_and_another_one_conflicts(pool: ThreadPoolExecutor) -> None:
    gate = PauseGate()
    first = pausing(pool, gate)
    second = pool.submit(gate.pause, "a", WAIT, WAIT)
    with pytest.raises(Conflict, match="'a' is under way; 'b' must wait"):
        gate.pause("b", WAIT, WAIT)
    held = pool.submit(gate.hold, "a", STAND)
    assert first.result(WAIT) is second.result(WAIT) is STAND
    assert gate.pause("a", WAIT, WAIT) is STAND
    with pytest.raises(Conflict):
        gate.pause("b", WAIT, WAIT)
    assert gate.resume("a")
    held.result(WAIT)


def test_no_boundary_in_time_withdraws_the_pause() -> None:
    gate = PauseGate()
    with pytest.raises(DeadlineExceeded, match=r"'a': no common step boundary within 0\.1 s"):
        gate.pause("a", WAIT, 0.05)
    assert gate.requested() == ""
    assert gate.hold("a", STAND) == 0.0
    assert not gate.resume("a")


def test_resume_before_the_boundary_cancels(pool: ThreadPoolExecutor) -> None:
    gate = PauseGate()
    answer = pausing(pool, gate)
    assert not gate.resume("a")
    with pytest.raises(Conflict, match="resumed before"):
        answer.result(WAIT)
    assert gate.hold("a", STAND) == 0.0


def test_boundary_of_a_withdrawn_pause_does_not_hold_for_the_next_one(
    pool: ThreadPoolExecutor,
) -> None:
    gate = PauseGate()
    pausing(pool, gate, "a")
    flagged = gate.requested()
    gate.resume("a")
    later = pausing(pool, gate, "b")
    assert gate.hold(flagged, STAND) == 0.0, "others may not stand at this step for b"
    assert not later.done()
    held = pool.submit(gate.hold, "b", STAND)
    assert later.result(WAIT) is STAND
    gate.resume("b")
    held.result(WAIT)


def test_finished_trainer_answers_pending_and_later_pauses(pool: ThreadPoolExecutor) -> None:
    gate = PauseGate()
    pending = pausing(pool, gate)
    gate.finish(STAND)
    assert pending.result(WAIT) is STAND
    assert gate.resume("a")
    for token in ("b", "c"):
        assert gate.pause(token, 0.001, WAIT) is STAND
        assert gate.resume(token)
    assert not gate.resume("unknown")


def test_close_ends_all_waits(pool: ThreadPoolExecutor) -> None:
    gate = PauseGate()
    waiting = pausing(pool, gate)
    gate.close()
    with pytest.raises(Unavailable):
        waiting.result(WAIT)
    gate = PauseGate()
    pausing(pool, gate)
    held = pool.submit(gate.hold, "a", STAND)
    until(lambda: gate.requested() == "")
    gate.close()
    held.result(WAIT)
    assert not gate.resume("a"), "a stopping trainer must not bless a checkpoint"


class _Context:
    """The part of a gRPC context the servicer reads."""

    def __init__(self, left: float | None) -> None:
        self._left = left

    def time_remaining(self) -> float | None:
        return self._left


def context(left: float | None = WAIT) -> grpc.ServicerContext:
    return _Context(left)  # type: ignore[return-value]


@pytest.mark.parametrize("left", [None, float("inf"), WAIT])
def test_servicer_answers_on_the_wire(pool: ThreadPoolExecutor, left: float | None) -> None:
    gate = PauseGate()
    servicer = TrainerServicer(gate, generation=2)
    request = trainer_pb2.PauseRequest(generation=2, token="t", hold_seconds=5)
    answer = pool.submit(servicer.Pause, request, context(left))
    until(lambda: gate.requested() == "t")
    held = pool.submit(gate.hold, "t", STAND)
    position = trainer_pb2.Position(partition="lane-03", major=1, minor=63)
    assert answer.result(WAIT) == trainer_pb2.PauseReply(
        step=12, samples=3_072, positions=[position]
    )
    reply = servicer.Resume(trainer_pb2.ResumeRequest(generation=2, token="t"), context())
    assert reply.held
    held.result(WAIT)


def test_servicer_gives_up_before_its_caller() -> None:
    servicer = TrainerServicer(PauseGate(), generation=2)
    request = trainer_pb2.PauseRequest(generation=2, token="t", hold_seconds=5)
    with pytest.raises(DeadlineExceeded):
        servicer.Pause(request, context(0.1))


@pytest.mark.parametrize(
    ("request_", "error", "says"),
    [
        (
            trainer_pb2.PauseRequest(generation=1, token="t", hold_seconds=1),
            Conflict,
            "generation 1",
        ),
        (trainer_pb2.PauseRequest(generation=2, hold_seconds=1), InvalidInput, "token"),
        (trainer_pb2.PauseRequest(generation=2, token="t"), InvalidInput, "hold_seconds is 0"),
    ],
)
def test_servicer_refuses(request_: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        TrainerServicer(PauseGate(), generation=2).Pause(request_, context())
    with pytest.raises(Conflict):
        TrainerServicer(PauseGate(), 2).Resume(
            trainer_pb2.ResumeRequest(generation=3, token="t"), context()
        )
