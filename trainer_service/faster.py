"""Which of two ways to do the same thing is faster, found by trying."""

from __future__ import annotations

import time
from collections.abc import Callable

ROUNDS = 5
WORTH_SECONDS = 0.005  # less is not worth the seconds that getting the second way ready may take
MARGIN = 0.95  # of the first's time: what differs less is noise


def second_is_faster(
    first: Callable[[], object],
    second: Callable[[], object],
    clock: Callable[[], float] = time.perf_counter,
) -> bool:
    """Whether the best of a few calls of `second` takes less than 95 % of that of `first`.

    Their first calls, which may compile something, don't count. `second` is never called when
    `first` takes less than 5 ms.
    """
    first()
    best = min(_seconds(first, clock) for _ in range(ROUNDS))
    if best < WORTH_SECONDS:
        return False
    second()
    challenger = float("inf")
    for _ in range(ROUNDS):  # in turn, so that a slow moment of the machine hits both
        best = min(best, _seconds(first, clock))
        challenger = min(challenger, _seconds(second, clock))
    return challenger < MARGIN * best


def _seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    call()
    return clock() - start
