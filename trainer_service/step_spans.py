"""Traces of some of a trainer's steps: one span for the step, one below it for each phase.

A trainer takes hundreds of steps a second and each is like the last, so one in many is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from services.kit.tracing import Tracing


class StepSpans:
    """Traces step `every`, 2 `every`, … of the loop's one thread."""

    def __init__(self, traces: Tracing, every: int) -> None:
        self._traces, self._every = traces, every
        self._open = False

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Around step `number`, once its batch is there."""
        if number % self._every:
            yield
            return
        self._open = True
        try:
            with self._traces.span("step", {"embermesh.step": number}):
                yield
        finally:
            self._open = False

    def phase(
        self, name: str, clock: AbstractContextManager[None]
    ) -> AbstractContextManager[object]:
        """`clock`, and a span around it while a step is traced."""
        return self._both(name, clock) if self._open else clock

    @contextmanager
    def _both(self, name: str, clock: AbstractContextManager[None]) -> Iterator[None]:
        with self._traces.span(name), clock:
            yield
