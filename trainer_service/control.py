"""Pausing a trainer for a checkpoint: the gate between the checkpoint service's calls and the loop.

A pause goes through three states, all under one lock:

- pending: Pause has arrived. The loop flags it in its dense pushes; the dense-PS names a step as
  the common boundary only when every trainer of that step flagged it, so that all stop after it.
- held: the loop stands still after that step, with every push acknowledged; Pause is answered. It
  ends by Resume with the same token, or by itself after `hold_seconds`.
- over: Resume says whether the trainer stood still the whole time. If it didn't, the checkpoint
  must be dropped.

A trainer past its last step stands still for good: it answers every Pause at once. Nothing here
knows of models or data.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc

from services.api.manifest import PositionEntry
from services.kit.errors import Conflict, DeadlineExceeded, InvalidInput, Unavailable
from services.wire import trainer_pb2, trainer_pb2_grpc

_MAX_WAIT = 150.0  # seconds; longest wait for the boundary, a little more than a barrier may take


@dataclass(frozen=True)
class Stand:
    """Where a trainer stands between two steps."""

    step: int = 0  # last step taken
    samples: int = 0  # rows trained; see trainer.proto PauseReply
    positions: Sequence[PositionEntry] = ()


@dataclass
class _Pause:
    """One pause; fields change only under the gate's lock."""

    token: str
    hold_seconds: float
    stand: Stand | None = None  # set when the loop stands still


class PauseGate:
    """The state above. `requested` and `hold` are the loop's side, `pause` and `resume` the
    callers'.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._pause: _Pause | None = None
        self._final: Stand | None = None
        self._closed = False
        self._last_resume: tuple[str, bool] = ("", False)  # makes a repeated Resume harmless

    def requested(self) -> str:
        """Token of the pending pause, empty when there is none."""
        with self._changed:
            return self._pause.token if self._pause and self._pause.stand is None else ""

    def hold(self, token: str, stand: Stand) -> float:
        """Stands still for pause `token` until it is resumed, expires or the gate closes; returns
        the seconds it took.

        Returns at once if that pause is no longer pending.
        """
        start = self._clock()
        with self._changed:
            pause = self._pause
            if pause is None or pause.token != token or pause.stand is not None:
                return 0.0
            pause.stand = stand
            self._changed.notify_all()
            deadline = start + pause.hold_seconds
            while self._pause is pause and not self._closed:
                left = deadline - self._clock()
                if left <= 0:
                    self._end(held=False)
                    break
                self._changed.wait(left)
        return self._clock() - start

    def finish(self, stand: Stand) -> None:
        """The loop takes no further step: `stand` answers the pending pause and all later ones."""
        with self._changed:
            self._final = stand
            if self._pause:
                self._pause.stand = stand
            self._changed.notify_all()

    def close(self) -> None:
        """The process is stopping: ends every wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def pause(self, token: str, hold_seconds: float, timeout: float) -> Stand:
        """Asks the loop to stand still and waits until it does; a repeated call with the same token
        joins the first.

        Raises Conflict while another pause is under way, DeadlineExceeded (and withdraws the pause)
        after `timeout` s.
        """
        deadline = self._clock() + timeout
        with self._changed:
            if self._final is not None:
                self._pause = _Pause(token, hold_seconds, self._final)
                return self._final
            pause = self._pause or _Pause(token, hold_seconds)
            if pause.token != token:
                raise Conflict(
                    f"pause {pause.token!r} is under way; {token!r} must wait for its end"
                )
            self._pause = pause
            while pause.stand is None:
                left = deadline - self._clock()
                if self._closed:
                    raise Unavailable("the trainer is stopping")
                if self._pause is not pause:
                    raise Conflict(f"pause {token!r} was resumed before the trainer stood still")
                if left <= 0:
                    self._pause = None
                    raise DeadlineExceeded(
                        f"pause {token!r}: no common step boundary within {timeout:.1f} s"
                    )
                self._changed.wait(left)
            return pause.stand

    def resume(self, token: str) -> bool:
        """Ends pause `token`; whether the trainer stood still from its Pause until now."""
        with self._changed:
            if self._pause is None or self._pause.token != token:
                return self._last_resume == (token, True)
            held = self._pause.stand is not None and not self._closed
            self._end(held=held)
            return held

    def _end(self, *, held: bool) -> None:
        if self._pause:
            self._last_resume = (self._pause.token, held)
        self._pause = None
        self._changed.notify_all()


class TrainerServicer(trainer_pb2_grpc.TrainerServicer):
    """gRPC shell over the gate; refuses callers of another generation."""

    def __init__(self, gate: PauseGate, generation: int) -> None:
        self._gate, self._generation = gate, generation

    def Pause(
        self, request: trainer_pb2.PauseRequest, context: grpc.ServicerContext
    ) -> trainer_pb2.PauseReply:
        """See trainer.proto."""
        self._check(request.generation, request.token)
        if request.hold_seconds == 0:
            raise InvalidInput("hold_seconds is 0; a pause must hold for at least 1 s")
        left = context.time_remaining()
        # Without a deadline gRPC says None or infinity.
        left = _MAX_WAIT if left is None else min(left, _MAX_WAIT)
        # Give up before the caller does, so that the pause is withdrawn for both.
        timeout = left - min(0.5, left / 10)
        stand = self._gate.pause(request.token, float(request.hold_seconds), timeout)
        positions = [trainer_pb2.Position(**entry.model_dump()) for entry in stand.positions]
        return trainer_pb2.PauseReply(step=stand.step, samples=stand.samples, positions=positions)

    def Resume(
        self,
        request: trainer_pb2.ResumeRequest,
        context: grpc.ServicerContext,  # noqa: ARG002  # the signature is gRPC's
    ) -> trainer_pb2.ResumeReply:
        """See trainer.proto."""
        self._check(request.generation, request.token)
        return trainer_pb2.ResumeReply(held=self._gate.resume(request.token))

    def _check(self, generation: int, token: str) -> None:
        if generation != self._generation:
            raise Conflict(f"generation {generation} calls, this trainer is of {self._generation}")
        if not token:
            raise InvalidInput("token is empty")
