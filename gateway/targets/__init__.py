"""Where a job's processes run. A target is a module of this package (or `module:function` of your
own) whose `create(settings: GatewayConfig) -> Target` is found by the name in
`EMBERMESH_GATEWAY_TARGET`.

A target only starts, observes and stops; it knows neither Redis nor states. All verbs are
idempotent, for the reconciler repeats them until it sees what it wants. `fence` is the leader's
token: a target must refuse (Conflict) a token lower than the highest it has seen for that job, so
that a gateway that lost the lead can't act any more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

import prometheus_client

from services.api.pods import PodSize
from services.kit.discovery import Role

NOT_YET = -1  # incarnation of a place that is made and not given to a process


@dataclasses.dataclass(frozen=True)
class ProcessSpec:
    """A process that should run: `python -m module arguments…` with `env` added to the inherited
    environment.
    """

    job: str
    generation: int
    role: Role
    rank: int
    module: str
    arguments: tuple[str, ...]
    env: Mapping[str, str]
    incarnation: int = 0  # higher: replaces an earlier process of the rank
    size: PodSize | None = None  # what it is to get, where the target can give it


@dataclasses.dataclass(frozen=True)
class Process:
    """A process that was started, as it is now."""

    role: Role
    rank: int
    alive: bool
    exit_code: int | None = (
        None  # negative: minus the signal; None: alive, or unknown after a gateway's restart
    )
    last_words: str = ""  # the end of an ended process's log
    incarnation: int = 0
    waits_for: str = ""  # why one that was started does not run yet


class Target(Protocol):
    """A place that runs processes."""

    def observe(self, job: str, generation: int) -> list[Process]:
        """Processes of that generation that were ever started; of a rank the newest incarnation.
        Places that wait for a process, and must be stopped like one, are NOT_YET.
        """

    def start(self, processes: Sequence[ProcessSpec], fence: int) -> None:
        """Starts those that were never started; all belong to one generation of one job. Earlier
        incarnations that still live are killed.
        """

    def stop(self, job: str, generation: int, *, kill: bool, fence: int) -> None:
        """Asks all processes of the generation to end; `kill` ends them without asking."""

    def logs(self, job: str, generation: int, role: Role, rank: int, tail: int) -> str:
        """The last `tail` lines the process wrote. Raises NotFound."""


Observe = Callable[[str, int], list[Process]]
"""(job, generation) -> as Target.observe."""


@runtime_checkable
class Surveyor(Protocol):
    """A target that can look at all jobs at the price of one."""

    def survey(self) -> Observe:
        """An `observe` for one round over the jobs, each asked once: what it answers is of the
        moment of the first question. A look that fails fails for every job.
        """


@runtime_checkable
class Measured(Protocol):
    """A target with metrics of its own."""

    def expose(self, registry: prometheus_client.CollectorRegistry) -> None:
        """Declares them; called once, before anything else."""


@runtime_checkable
class Keeper(Protocol):
    """A target that keeps something of a job beside its processes."""

    def collect(self, active: Collection[str], fence: int) -> None:
        """Removes what is left of all jobs but `active`, and of earlier generations of those."""
