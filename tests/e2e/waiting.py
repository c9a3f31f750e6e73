"""Waiting for something that other processes bring about."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(look: Callable[[], T | None], *, seconds: float, what: str) -> T:
    """The first truthy answer of `look`; AssertionError that names `what` after `seconds`."""
    deadline, idle = time.monotonic() + seconds, threading.Event()
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        idle.wait(0.1)
    raise AssertionError(f"waited {seconds:.0f} s in vain for {what}")
