"""An agent: stands by until the board gives it a process, runs it, says how it ended.

One process at a time. The board says what shall be; each beat compares it with what is, so a word
that was missed is heard at the next one. While Redis is away the process goes on. An agent ends its
process by itself when its work has left the board, and when the job has been over or in a later
generation for a minute: then nobody is left who would stop it.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import signal
import threading
from collections.abc import Callable
from typing import Protocol

from services.kit.discovery import Registry
from services.kit.errors import InvalidInput, NotFound, Unavailable
from services.kit.lifecycle import EXIT_PERMANENT
from services.kit.standby import KILL, TERM, Agent, Ask, Board, Heard, Place, Work
from services.standby.metrics import StandbyMetrics

log = logging.getLogger(__name__)

BEAT_SECONDS = 0.2
_LAST_WORDS = 5  # lines
_LOGS_KEPT = 4  # of ended processes
_LOOK_SECONDS = 5.0  # between two looks whether the job still wants this generation
_UNWANTED_SECONDS = 60.0  # above the patience of a gateway that stops a generation itself
_LEAVE_SECONDS = 3.0  # for the last report when the agent itself ends


class Output(Protocol):
    """The end of what a process wrote."""

    def last(self, lines: int) -> str:
        """The last `lines` lines."""


class Running(Protocol):
    """A process; see child.Child."""

    @property
    def tail(self) -> Output:
        """What it wrote."""

    def exit_code(self) -> int | None:
        """None while it runs; negative: minus the signal."""

    def signal(self, number: signal.Signals) -> None:
        """Signals it and all it started."""


@dataclasses.dataclass
class _Current:
    """The process at hand."""

    work: Work
    child: Running
    asked: bool = False  # got its SIGTERM
    told: bool = False  # is to end, by whomever
    looked: float = 0.0  # when the job was last asked about
    unwanted_since: float | None = None


class StandbyAgent:
    """Use from one thread, which must outlive the process (see child.Child). `launch` starts a
    process and raises InvalidInput for one this agent must not run; `clock` gives seconds.
    """

    def __init__(
        self,
        card: Agent,
        board: Board,
        registry: Registry,
        launch: Callable[[Work], Running],
        metrics: StandbyMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._card, self._board, self._registry = card, board, registry
        self._launch, self._metrics, self._clock = launch, metrics, clock
        self._current: _Current | None = None
        self._logs: collections.OrderedDict[str, Output] = collections.OrderedDict()
        self._heard = False  # the board answered at the last beat

    def ready(self) -> bool:
        """Whether the board answered at the last beat. May be called from any thread."""
        return self._heard

    def run(self, stop: threading.Event, grace: float) -> None:
        """Stands by until `stop`; then ends its process, by SIGKILL after `grace` seconds, and
        leaves.
        """
        while not stop.is_set():
            self.beat()
            stop.wait(BEAT_SECONDS)
        self._card = dataclasses.replace(self._card, draining=True)
        begin, pause = self._clock(), threading.Event()
        while self._current is not None:
            if self._current.child.exit_code() is None:
                late = self._clock() - begin >= grace
                self._end(signal.SIGKILL if late else signal.SIGTERM)
            elif self._clock() - begin >= grace + _LEAVE_SECONDS:
                break  # Redis is away: the lease ends by itself
            self.beat()
            pause.wait(BEAT_SECONDS / 2)
        try:
            self._board.withdraw(self._card)
        except Unavailable as error:
            log.warning("%s", error)

    def beat(self) -> None:
        """One look at the board and at the process. A Redis that is away is only logged."""
        try:
            work = None if self._current is None else self._current.work
            heard = self._board.beat(self._card, work)
            for ask in heard.asks:
                self._answer(ask)
            self._attend(heard)
        except Unavailable as error:
            self._metrics.redis_errors.inc()
            if self._heard:
                log.warning("%s; what runs goes on", error)
            self._heard = False
            return
        self._heard = True

    def _attend(self, heard: Heard) -> None:
        current = self._current
        if current is None:
            if heard.work is not None and not self._card.draining:
                self._begin(heard.work)
            return
        code = current.child.exit_code()
        if code is not None:
            self._report(current, code)
        elif heard.work is None or heard.work.place != current.work.place:
            self._end(signal.SIGKILL)
        elif heard.stop:
            self._end({TERM: signal.SIGTERM, KILL: signal.SIGKILL}[heard.stop])
        elif self._unwanted(current):
            log.warning("nobody wants %s any more: ending it", current.work.place)
            self._end(signal.SIGKILL)

    def _begin(self, work: Work) -> None:
        log.info("running %s", work.place)
        try:
            child = self._launch(work)
        except InvalidInput as error:
            log.error("%s", error)
            place = Place(self._card.name, True, EXIT_PERMANENT, f"{error}\n")
            self._board.end(work, place)
            return
        self._current = _Current(work, child, looked=self._clock())
        self._logs[work.place] = child.tail
        while len(self._logs) > _LOGS_KEPT:
            self._logs.popitem(last=False)
        self._metrics.started.inc()
        self._metrics.busy.set(1)

    def _report(self, current: _Current, code: int) -> None:
        words = current.child.tail.last(_LAST_WORDS)
        self._board.end(current.work, Place(self._card.name, True, code, words))
        log.info("%s ended with exit code %d", current.work.place, code)
        if code and not current.told:
            self._metrics.failed.inc()
        self._metrics.busy.set(0)
        self._current = None

    def _end(self, number: signal.Signals) -> None:
        """SIGTERM once, SIGKILL as often as wanted."""
        current = self._current
        if current is not None and (number == signal.SIGKILL or not current.asked):
            current.told = True
            current.asked = True
            current.child.signal(number)

    def _unwanted(self, current: _Current) -> bool:
        """Whether the job has been over, or in a later generation, for a while."""
        now = self._clock()
        if now - current.looked >= _LOOK_SECONDS:
            current.looked = now
            try:
                run = self._registry.run(current.work.job)
                wanted = run.active and run.generation <= current.work.generation
            except NotFound:
                wanted = False
            if wanted:
                current.unwanted_since = None
            elif current.unwanted_since is None:
                current.unwanted_since = now
        since = current.unwanted_since
        return since is not None and now - since >= _UNWANTED_SECONDS

    def _answer(self, ask: Ask) -> None:
        output = self._logs.get(ask.place)
        self._board.answer(ask, None if output is None else output.last(ask.lines))
