"""What a piece of work belongs to: a person's request, a trace. It goes with the work over threads
and calls, and onto every log line that is written meanwhile.

Knows neither HTTP nor gRPC nor OpenTelemetry.
"""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Trail:
    """Empty fields: of nothing in particular."""

    request_id: str = ""  # of the REST request that all this is for
    trace_id: str = ""  # 32 hexadecimal digits, as in a traceparent header

    def fields(self) -> Mapping[str, str]:
        """The fields that are not empty, for a log line."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value}


_NOWHERE = Trail()
_PRESENT: contextvars.ContextVar[Trail] = contextvars.ContextVar("trail", default=_NOWHERE)


def present() -> Trail:
    """The trail of the running thread or task."""
    return _PRESENT.get()


@contextmanager
def following(*, request_id: str | None = None, trace_id: str | None = None) -> Iterator[None]:
    """Work inside the block belongs to these too; None leaves one as it is."""
    trail = _PRESENT.get()
    if request_id is not None:
        trail = dataclasses.replace(trail, request_id=request_id)
    if trace_id is not None:
        trail = dataclasses.replace(trail, trace_id=trace_id)
    token = _PRESENT.set(trail)
    try:
        yield
    finally:
        _PRESENT.reset(token)


def bound(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """`function` for another thread, where it goes on with the trail of here and now."""
    context = contextvars.copy_context()

    def run(*arguments: _P.args, **named: _P.kwargs) -> _T:
        return context.run(function, *arguments, **named)

    return run
