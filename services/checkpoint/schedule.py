"""When the next checkpoint of each active run is due. Pure: time comes in, names of jobs come out.

Knows nothing of how a checkpoint is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

RETRY_SECONDS = 30.0


@dataclasses.dataclass(frozen=True)
class Wish:
    """What a run asks for: a checkpoint of `generation` every `every` seconds."""

    generation: int
    every: float


@dataclasses.dataclass(frozen=True)
class _Entry:
    wish: Wish
    due: float


class Schedule:
    """Due times by job. `now` is any clock that doesn't jump; all methods are called by one thread.

    A run is due `every` seconds after it is first seen, and `every` seconds after its last attempt
    began; intervals missed meanwhile (a long checkpoint, a stopped machine) are not made up for.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def update(self, wishes: Mapping[str, Wish], now: float) -> list[str]:
        """Takes over what the runs ask for now. Returns the jobs that are gone.

        A new generation, or another interval, starts its time anew.
        """
        gone = sorted(self._entries.keys() - wishes.keys())
        kept = self._entries
        self._entries = {
            job: kept[job]
            if job in kept and kept[job].wish == wish
            else _Entry(wish, now + wish.every)
            for job, wish in wishes.items()
        }
        return gone

    def due(self, now: float) -> list[tuple[str, int]]:
        """(job, generation) of all that are due, the most overdue first."""
        late = [(e.due, job, e.wish.generation) for job, e in self._entries.items() if e.due <= now]
        return [(job, generation) for _, job, generation in sorted(late)]

    def begun(self, job: str, now: float) -> None:
        """An attempt for `job` starts now."""
        self._move(job, now + self._entries[job].wish.every)

    def failed(self, job: str, generation: int, now: float) -> None:
        """An attempt failed: the next one comes soon, but no sooner than `every`."""
        entry = self._entries.get(job)
        if entry is not None and entry.wish.generation == generation:
            self._move(job, min(entry.due, now + min(entry.wish.every, RETRY_SECONDS)))

    def _move(self, job: str, due: float) -> None:
        self._entries[job] = dataclasses.replace(self._entries[job], due=due)
