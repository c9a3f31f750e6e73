"""Log lines of a job's processes as text: once, or on and on while the job lives.

Which processes a job has follows from its spec, so logs can also be read when the job is over.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from contextlib import suppress

from embermesh.client import Client
from services.api.views import JobView
from services.kit.discovery import Role
from services.kit.errors import NotFound

EVERY_SECONDS = 1.0
ROLES = {Role.TRAINER: "trainers", Role.SPARSE_PS: "sparse_ps", Role.DENSE_PS: "dense_ps"}


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Whole lines of one process."""

    role: str
    rank: int
    text: str

    def as_text(self, *, named: bool) -> str:
        """The lines, under the process's name where asked."""
        return f"==> {self.role}-{self.rank} <==\n{self.text}" if named else self.text

    def as_json(self) -> str:
        """One JSON object for each line."""
        said = ({"role": self.role, "rank": self.rank, "line": x} for x in self.text.splitlines())
        return "".join(json.dumps(line) + "\n" for line in said)


def read(
    client: Client,
    job: str,
    role: str | None,
    rank: int | None,
    tail: int,
    generation: int | None = None,
) -> Iterator[Chunk]:
    """The last `tail` lines of every chosen process, of the newest generation unless another is
    named.

    Raises NotFound when none of them has a log.
    """
    view = client.get(job)
    found = False
    for process in processes(view, role, rank):
        with suppress(NotFound):  # it has not been started yet
            text = client.logs(
                job, role=process[0], rank=process[1], tail=tail, generation=generation
            )
            found = True
            yield Chunk(*process, text)
    if not found:
        when = "" if generation is None else f", generation {generation}"
        raise NotFound(f"job {job} ({view.state}) has no log of {role or 'any process'}{when}")


def follow(
    client: Client,
    job: str,
    role: str | None,
    rank: int | None,
    tail: int,
    every: float = EVERY_SECONDS,
) -> Iterator[Chunk]:
    """The last `tail` lines of every chosen process, then what they add, until the job is over.

    Each process is read by itself, so that the lines it adds can be told from those already given.
    """
    seen: dict[tuple[str, int], list[str]] = {}
    idle = threading.Event()
    while True:
        view = client.get(job)  # before the logs, so that the last words are still read
        for process in processes(view, role, rank):
            with suppress(NotFound):
                text = client.logs(job, role=process[0], rank=process[1], tail=tail)
                lines = text.splitlines(keepends=True)
                yield Chunk(*process, "".join(added(seen.get(process, []), lines)))
                seen[process] = lines
        if view.state.final:
            return
        idle.wait(every)


def added(before: list[str], now: list[str]) -> list[str]:
    """Lines of `now` after the longest end of `before` that it begins with.

    Both are windows over one growing text.
    """
    for overlap in range(min(len(before), len(now)), 0, -1):
        if before[-overlap:] == now[:overlap]:
            return now[overlap:]
    return now


def processes(view: JobView, role: str | None, rank: int | None) -> list[tuple[str, int]]:
    """(role, rank) of the job's processes; None chooses all."""
    resources = view.spec.get("resources", {})
    return [
        (str(kind), number)
        for kind, field in ROLES.items()
        for number in range(int(resources.get(field, 1)))
        if role in (None, str(kind)) and rank in (None, number)
    ]
