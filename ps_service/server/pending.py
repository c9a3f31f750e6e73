"""The one snapshot of a server that has begun and waits to be written.

A snapshot that nobody comes back for is given up when the next one begins, when it is dropped, or
after a while, so that a checkpoint service that died costs no memory for long. Knows nothing of
what a snapshot holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from services.kit.errors import Conflict

KEEP_SECONDS = 600.0


class Abandonable(Protocol):
    """Holds memory until it is written or abandoned."""

    def abandon(self) -> None:
        """Frees what it holds."""


Held = TypeVar("Held", bound=Abandonable)


class PendingSnapshot(Generic[Held]):
    """At most one snapshot, under the URI it will be written to. Thread-safe.

    It is given up if it is not taken within `keep_seconds`.
    """

    def __init__(self, keep_seconds: float = KEEP_SECONDS) -> None:
        self._keep_seconds = keep_seconds
        self._guard = threading.Lock()
        self._held: tuple[str, Held, threading.Timer] | None = None

    def begin(self, uri: str, make: Callable[[], Held]) -> Held:
        """Gives up the one that is held, then holds a new one. Raises what `make` raises."""
        with self._guard:
            self._give_up()
            held = make()
            timer = threading.Timer(self._keep_seconds, self.drop, [uri])
            timer.daemon = True
            timer.start()
            self._held = (uri, held, timer)
            return held

    def take(self, uri: str) -> Held:
        """Hands out the one that began for `uri`; from then on it is the caller's.

        Raises Conflict if there is none (any more).
        """
        with self._guard:
            if self._held is None or self._held[0] != uri:
                raise Conflict(f"no snapshot was begun for {uri}, or it was given up meanwhile")
            (_, held, timer), self._held = self._held, None
            timer.cancel()
            return held

    def drop(self, uri: str) -> None:
        """Gives up the one that began for `uri`, if it is still held."""
        with self._guard:
            if self._held is not None and self._held[0] == uri:
                self._give_up()

    def close(self) -> None:
        """Gives up what is held."""
        with self._guard:
            self._give_up()

    def _give_up(self) -> None:
        if self._held is not None:
            (_, held, timer), self._held = self._held, None
            timer.cancel()
            held.abandon()
