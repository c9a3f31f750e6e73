"""Target `standby`: processes run in containers that stand by for them (`services.standby`), found
and told through a board in Redis (`services.kit.standby`).

A generation is given out whole or not at all, so two jobs that need more agents than there are
never hold each other up; NoRoom says what is missing, and the reconciler tries again. A process is
taken for dead when its agent said how it ended, or when the agent has had no lease for a while in
which Redis was there: a container that was killed takes its process with it, and a restarted one is
a new agent that is free.

The environment on the board names only the run. Where Redis is and which certificates to use, every
agent knows itself.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from gateway import store as storing
from gateway.config import GatewayConfig
from gateway.targets import Process, ProcessSpec
from services.kit.discovery import Role
from services.kit.errors import NoRoom, NotFound, Unavailable
from services.kit.member import MemberConfig
from services.kit.standby import KILL, TERM, Agent, Board, Place, Work
from services.kit.tls import TlsConfig

_GRACE = 3.0  # seconds without a lease, beyond those that the lease itself lasts
_PATIENCE = 15.0  # seconds after Redis was away in which agents may come back
_TRIES = 5  # looks at a board that others change meanwhile
_THE_AGENTS_OWN = (f"{MemberConfig.PREFIX}REDIS_URL", f"{MemberConfig.PREFIX}HOST")


class StandbyTarget:
    """Gives processes to agents, observes and stops them. Thread-safe. `clock` gives seconds."""

    def __init__(
        self,
        board: Board,
        clock: Callable[[], float] = time.monotonic,
        grace: float = _GRACE,
        patience: float = _PATIENCE,
    ) -> None:
        self._board = board
        self._watch = _Absence(clock, grace, patience)

    def observe(self, job: str, generation: int) -> list[Process]:
        """See Target."""
        try:
            places = self._board.places(job, generation)
            agents = {agent.name for agent in self._board.agents()} if places else set()
        except Unavailable:
            self._watch.interrupted()
            raise
        waiting = {place.agent for place in places.values() if not place.ended}
        gone = self._watch.gone(waiting, agents)
        return [_process(field, place, gone) for field, place in _newest(places).items()]

    def start(self, processes: Sequence[ProcessSpec], fence: int) -> None:
        """See Target. Raises NoRoom when there are too few free agents for all that are missing."""
        for _ in range(_TRIES):
            places = self._board.places(processes[0].job, processes[0].generation)
            known = {_parts(field)[:2]: _parts(field)[2] for field in _newest(places)}
            missing = [p for p in processes if p.incarnation > known.get((p.role, p.rank), -1)]
            if not missing:
                return
            chosen = choose([p.role for p in missing], self._board.agents())
            work = [work_of(spec) for spec in missing]
            kill = [
                (place.agent, f"{spec.job}:{spec.generation}:{field}")
                for spec in missing
                for field, place in places.items()
                if not place.ended and _parts(field)[:2] == (spec.role, spec.rank)
            ]
            if self._board.give(list(zip(work, chosen, strict=True)), kill, fence):
                return
        raise Unavailable(f"the agents changed {_TRIES} times while they were given work")

    def stop(self, job: str, generation: int, *, kill: bool, fence: int) -> None:
        """See Target; an agent sends SIGTERM once, however often it is asked."""
        work = [
            (place.agent, f"{job}:{generation}:{field}")
            for field, place in self._board.places(job, generation).items()
            if not place.ended
        ]
        self._board.stop(work, KILL if kill else TERM, fence)

    def logs(self, job: str, generation: int, role: Role, rank: int, tail: int) -> str:
        """See Target. Raises Unavailable when the agent doesn't answer."""
        what = f"{role} {rank} of job {job}, generation {generation}"
        newest = _newest(self._board.places(job, generation))
        field = next((f for f in newest if _parts(f)[:2] == (role, rank)), None)
        if field is None:
            raise NotFound(f"{what}, has no log")
        place = newest[field]
        if place.agent not in {agent.name for agent in self._board.agents()}:
            raise NotFound(f"{what}: agent {place.agent}, which ran it, is gone with its log")
        text = self._board.ask(place.agent, f"{job}:{generation}:{field}", tail)
        if text is None:
            raise NotFound(f"{what}: agent {place.agent} keeps its log no longer")
        return text


def choose(roles: Sequence[Role], agents: Mapping[Agent, bool]) -> list[Agent]:
    """A free agent (its value in `agents`) for each role, no agent twice; those that can do little
    first, so that the others stay for what else may come. Raises NoRoom that counts what is missing
    when there is no such choice.
    """
    free = sorted((a for a, is_free in agents.items() if is_free), key=_preference)
    holder: dict[Agent, int] = {}  # agent -> index of the role that it has now

    def place(index: int, tried: set[Agent]) -> bool:
        for agent in free:
            if roles[index] in agent.roles and agent not in tried:
                tried.add(agent)
                if agent not in holder or place(holder[agent], tried):
                    holder[agent] = index
                    return True
        return False

    if not all(place(index, set()) for index in range(len(roles))):
        raise NoRoom(_shortage(roles, agents))
    chosen = {index: agent for agent, index in holder.items()}
    return [chosen[index] for index in range(len(roles))]


def create(settings: GatewayConfig) -> StandbyTarget:
    """The target as the gateway's settings describe it."""
    return StandbyTarget(Board(storing.connect(settings.redis_url)))


class _Absence:
    """Which agents are gone for good. Time in which nobody looked, or could look, counts for
    nothing. Thread-safe.
    """

    def __init__(self, clock: Callable[[], float], grace: float, patience: float) -> None:
        self._clock, self._grace, self._patience = clock, grace, patience
        self._lock = threading.Lock()  # guards the three below
        self._missing: dict[str, float] = {}  # agent -> since when
        self._looked = clock()
        self._trusted = clock() + patience  # from when on an absence means something

    def interrupted(self) -> None:
        """Redis was away: the agents' leases are too."""
        with self._lock:
            self._missing.clear()
            self._trusted = self._clock() + self._patience

    def gone(self, expected: set[str], there: set[str]) -> set[str]:
        """Those of `expected` that have been absent long enough."""
        with self._lock:
            now = self._clock()
            if now - self._looked > self._patience:
                self._missing.clear()
            self._looked = now
            for agent in there & self._missing.keys():
                del self._missing[agent]
            for agent in expected - there:
                self._missing.setdefault(agent, now)
            if now < self._trusted:
                return set()
            return {a for a in expected - there if now - self._missing[a] >= self._grace}


def _shortage(roles: Sequence[Role], agents: Mapping[Agent, bool]) -> str:
    needed = collections.Counter(roles)
    parts = [
        f"{count} {role} (free: {sum(free and role in a.roles for a, free in agents.items())} of "
        f"{sum(role in a.roles for a in agents)} agents)"
        for role, count in sorted(needed.items())
    ]
    return f"waits for free agents; it needs {', '.join(parts)}"


def _preference(agent: Agent) -> tuple[int, str]:
    return len(agent.roles), agent.name


def work_of(spec: ProcessSpec) -> Work:
    """What an agent is told: without what only the gateway may know, or the agent knows better."""
    env = {
        name: value
        for name, value in spec.env.items()
        if name not in _THE_AGENTS_OWN and not name.startswith(TlsConfig.PREFIX)
    }
    place = (spec.job, spec.generation, spec.role, spec.rank, spec.incarnation)
    return Work(*place, spec.module, spec.arguments, env)


def _newest(places: Mapping[str, Place]) -> dict[str, Place]:
    """Of each rank the newest incarnation."""
    fields: Iterable[str] = sorted(places, key=_parts)
    newest = {_parts(field)[:2]: field for field in fields}
    return {field: places[field] for field in newest.values()}


def _parts(field: str) -> tuple[Role, int, int]:
    """Inverse of Work.field."""
    role, rank, incarnation = field.split(":")
    return Role(role), int(rank), int(incarnation)


def _process(field: str, place: Place, gone: set[str]) -> Process:
    role, rank, incarnation = _parts(field)
    if not place.ended and place.agent in gone:
        return Process(role, rank, False, None, f"agent {place.agent} is gone\n", incarnation)
    return Process(
        role, rank, not place.ended, place.exit_code, place.last_words, incarnation=incarnation
    )
