"""Bad rows of one source: counted, the first ones logged, and refused above the spec's limit."""

from __future__ import annotations

import logging

from services.kit.errors import InvalidInput

_LOG = logging.getLogger(__name__)
_LOGGED = 5
_SHOWN = 200  # characters of a line in a message


class BadRows:
    """Counts for `data.max_bad_rows`.

    `seen` is what this process saw and what the limit is compared with. `own` is its share in the
    job's sum: a malformed line has no row number, so every trainer that reads the file sees it, and
    line k counts for the trainer of rank k % trainers.
    """

    def __init__(self, limit: int, rank: int = 0, trainers: int = 1) -> None:
        self._limit = limit
        self._rank = rank
        self._trainers = trainers
        self._last = ""
        self._lines = 0
        self.seen = 0
        self.own = 0

    def add_shared(self, where: str, reason: str, text: str) -> None:
        """A malformed line that every trainer sees."""
        self.own += self._lines % self._trainers == self._rank
        self._lines += 1
        self._add(f"{where}: {reason}: {shorten(text)}")

    def add(self, where: str, reason: str, text: str = "") -> None:
        """A bad row or message that only this trainer sees."""
        self.own += 1
        self._add(f"{where}: {reason}: {shorten(text)}" if text else f"{where}: {reason}")

    def add_silent(self, count: int) -> None:
        """Further bad rows like the last one."""
        self.own += count
        self.seen += count

    def check(self) -> None:
        """Raises InvalidInput with count, limit and the last bad row when there are too many."""
        if self.seen > self._limit:
            raise InvalidInput(
                f"{self.seen} bad rows, data.max_bad_rows allows {self._limit}; "
                f"the last one: {self._last}"
            )

    def _add(self, message: str) -> None:
        self.seen += 1
        self._last = message
        if self.seen <= _LOGGED:
            _LOG.warning("bad row %d: %s", self.seen, message)


def shorten(text: str) -> str:
    """The text, cut where a message would get too long."""
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
