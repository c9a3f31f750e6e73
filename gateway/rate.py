"""A token bucket for each caller, in this process's memory: n gateways let n times as much through.

Memory is bounded: of more callers than `callers` the one that asked longest ago is forgotten, which
can only be in its favour.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable

from services.kit.errors import TooManyRequests

_CALLERS = 10_000


class RateLimiter:
    """Lets a caller make `burst` requests at once and `per_second` in the long run; 0 = no bound.

    Thread-safe; `clock` gives seconds that never go back.
    """

    def __init__(
        self,
        per_second: float,
        burst: int,
        clock: Callable[[], float],
        callers: int = _CALLERS,
    ) -> None:
        self._rate, self._burst, self._clock, self._callers = per_second, burst, clock, callers
        self._lock = threading.Lock()  # guards _full
        # caller -> when its bucket is full again, in order of the last request
        self._full: collections.OrderedDict[str, float] = collections.OrderedDict()

    def take(self, caller: str) -> None:
        """Counts one request. Raises TooManyRequests, which then doesn't count."""
        if self._rate == 0:
            return
        with self._lock:
            now = self._clock()
            full = max(self._full.get(caller, now), now) + 1 / self._rate
            late = full - now - self._burst / self._rate
            if late > 1e-9:  # rounding
                raise TooManyRequests(
                    f"{caller} asks more than {self._rate:g} times a second", retry_after=late
                )
            self._full[caller] = full
            self._full.move_to_end(caller)
            if len(self._full) > self._callers:
                self._full.popitem(last=False)
