"""Watches the job's run for trainers that were replaced, and tells the server, so that nobody waits
for the dead.

The gateway decides who is dead and writes the incarnations into the run. A look that fails changes
nothing: a successor's claim says the same, only later.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType

from services.kit.discovery import Run
from services.kit.errors import NotFound, Unavailable

log = logging.getLogger(__name__)

EVERY_SECONDS = 1.0


class Replacements:
    """A context manager that looks on a thread of its own."""

    def __init__(
        self,
        look: Callable[[], Run],
        generation: int,
        expel: Callable[[int, int], None],
        every: float = EVERY_SECONDS,
    ) -> None:
        """`look` gives the job's run, whose incarnations count if it is of `generation`; `expel`
        is told (rank, incarnation), see `StepBarrier`.
        """
        self._look, self._generation, self._expel = look, generation, expel
        self._every = every
        self._known: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="replacements", daemon=True)

    def look(self) -> None:
        """One look."""
        try:
            run = self._look()
        except (NotFound, Unavailable) as error:
            log.info("%s", error)
            return
        if run.generation != self._generation or run.incarnations == self._known:
            return
        self._known = run.incarnations
        for rank, incarnation in enumerate(run.incarnations):
            if incarnation:
                log.info("trainer %d is incarnation %d now", rank, incarnation)
                self._expel(rank, incarnation)

    def __enter__(self) -> Replacements:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _loop(self) -> None:
        while not self._stop.wait(self._every):
            self.look()
