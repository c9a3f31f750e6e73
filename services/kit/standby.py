"""The board in Redis on which the gateway gives work to containers that stand by.

Keys, all under `embermesh:standby:`:
  agent:{agent}              JSON `Agent`, expires unless renewed several times a second
  work:{agent}               hash {place, json, stop}: the process the agent shall run, a `Work`;
                             stop is absent, `term` or `kill`. Gone once the agent is free again
  places:{job}:{generation}  hash `role:rank:incarnation` -> JSON `Place`: every process of the
                             generation that was ever started, by whom, and how it ended
  asks:{agent}, reply:{id}   lists: questions for the end of a log, and one answer
  fence                      highest leader token seen, of any job

The gateway writes `work` and new `places`, in scripts that refuse a token lower than `fence`; an
agent writes its lease and how its process ended. So a gateway that dies between two lines leaves a
generation given out whole or not at all, and one that lost the lead can't act. No secret is on the
board: an agent has its own address of Redis and its own certificates.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import redis

from services.kit.discovery import Role
from services.kit.errors import Conflict, Unavailable

LEASE_SECONDS = 4.0
TERM, KILL = "term", "kill"
_PREFIX = "embermesh:standby:"
_KEPT_SECONDS = 86_400  # after the last sign of life of any of its agents a generation is forgotten
_ANSWER_SECONDS = 2  # for the end of a log; below the socket's timeout

_GIVE = """
-- KEYS: fence, places, then work and agent of each process, then work of each one to kill
-- ARGV: token, milliseconds, processes, then field, place, Place and Work of each, then the place
--       of each one to kill
local fence = tonumber(redis.call('GET', KEYS[1]) or '0')
if tonumber(ARGV[1]) < fence then return 'fenced ' .. fence end
local count = tonumber(ARGV[3])
for i = 0, count - 1 do
  if redis.call('HEXISTS', KEYS[2], ARGV[4 + 4 * i]) == 1 then return 'raced' end
  if redis.call('EXISTS', KEYS[3 + 2 * i]) == 1 then return 'raced' end
  if redis.call('EXISTS', KEYS[4 + 2 * i]) == 0 then return 'raced' end
end
redis.call('SET', KEYS[1], ARGV[1])
for i = 0, count - 1 do
  redis.call('HSET', KEYS[2], ARGV[4 + 4 * i], ARGV[6 + 4 * i])
  redis.call('HSET', KEYS[3 + 2 * i], 'place', ARGV[5 + 4 * i], 'json', ARGV[7 + 4 * i])
  redis.call('PEXPIRE', KEYS[3 + 2 * i], ARGV[2])
end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
for i = 1, #KEYS - 2 - 2 * count do
  local key = KEYS[2 + 2 * count + i]
  if redis.call('HGET', key, 'place') == ARGV[3 + 4 * count + i] then
    redis.call('HSET', key, 'stop', 'kill')
  end
end
return 'ok'
"""
_STOP = """
-- KEYS: fence, then work of each process; ARGV: token, 'term' or 'kill', then the place of each
local fence = tonumber(redis.call('GET', KEYS[1]) or '0')
if tonumber(ARGV[1]) < fence then return 'fenced ' .. fence end
redis.call('SET', KEYS[1], ARGV[1])
for i = 2, #KEYS do
  if redis.call('HGET', KEYS[i], 'place') == ARGV[1 + i]
      and redis.call('HGET', KEYS[i], 'stop') ~= 'kill' then
    redis.call('HSET', KEYS[i], 'stop', ARGV[2])
  end
end
return 'ok'
"""
_END = """
-- KEYS: work, places; ARGV: place, field, Place. The agent is free again; a generation that was
-- forgotten stays so.
if redis.call('HEXISTS', KEYS[2], ARGV[2]) == 1 then
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
end
if redis.call('HGET', KEYS[1], 'place') == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 'ok'
"""


@dataclasses.dataclass(frozen=True)
class Agent:
    """A container that stands by, as it describes itself. A restarted one has another name."""

    name: str
    roles: tuple[Role, ...]  # what it can do
    host: str  # its address, for people
    draining: bool = False  # takes no more work

    @classmethod
    def from_json(cls, text: str | bytes) -> Agent:
        """From the text of its lease."""
        fields = json.loads(text)
        return cls(**{**fields, "roles": tuple(map(Role, fields["roles"]))})


@dataclasses.dataclass(frozen=True)
class Work:
    """A process to run: `python -m module arguments…` with `env` added to the agent's own."""

    job: str
    generation: int
    role: Role
    rank: int
    incarnation: int
    module: str
    arguments: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def field(self) -> str:
        """Its name among the processes of its generation."""
        return f"{self.role}:{self.rank}:{self.incarnation}"

    @property
    def place(self) -> str:
        """Its name among all processes."""
        return f"{self.job}:{self.generation}:{self.field}"

    @classmethod
    def from_json(cls, text: str | bytes) -> Work:
        """From the text on the board."""
        fields = json.loads(text)
        changed = {"role": Role(fields["role"]), "arguments": tuple(fields["arguments"])}
        return cls(**{**fields, **changed})


@dataclasses.dataclass(frozen=True)
class Place:
    """Who runs or ran a process, and how it ended."""

    agent: str
    ended: bool = False
    exit_code: int | None = None  # negative: minus the signal; None: not ended, or nobody knows
    last_words: str = ""


@dataclasses.dataclass(frozen=True)
class Heard:
    """What the board has for an agent."""

    work: Work | None
    stop: str = ""  # "", TERM or KILL
    asks: tuple[Ask, ...] = ()


@dataclasses.dataclass(frozen=True)
class Ask:
    """A question for the last `lines` lines of a process; the answer goes to `reply`."""

    place: str
    lines: int
    reply: str


class Board:
    """Typed access to the keys above. `client` has timeouts. Every method raises Unavailable when
    Redis is away. Thread-safe.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._give = client.register_script(_GIVE)
        self._stop = client.register_script(_STOP)
        self._end = client.register_script(_END)

    # The gateway's side.

    def agents(self) -> dict[Agent, bool]:
        """Agents whose lease is alive, by name -> whether it is free."""
        with _guard("list the agents"):
            keys = sorted(set(self._redis.scan_iter(f"{_PREFIX}agent:*", count=500)))
            leases: Any = self._redis.mget(keys) if keys else []
            agents = [Agent.from_json(text) for text in leases if text is not None]
            pipe = self._redis.pipeline(transaction=False)
            for agent in agents:
                pipe.exists(_work_key(agent.name))
            busy = pipe.execute() if agents else []
        return {a: not (b or a.draining) for a, b in zip(agents, busy, strict=True)}

    def places(self, job: str, generation: int) -> dict[str, Place]:
        """Field (`Work.field`) -> Place of every process of the generation."""
        with _guard("read the places"):
            found: Any = self._redis.hgetall(_places_key(job, generation))
        return {field.decode(): Place(**json.loads(text)) for field, text in found.items()}

    def give(
        self, work: Sequence[tuple[Work, Agent]], kill: Sequence[tuple[str, str]], fence: int
    ) -> bool:
        """Gives every agent its work, all of one generation, and marks the work of others, (agent,
        place), to be killed: all of it or nothing. False when the board is no longer as it was
        read: look again. Raises Conflict for a token that is too low.
        """
        job, generation = work[0][0].job, work[0][0].generation
        keys = [_FENCE, _places_key(job, generation)]
        arguments: list[str | int] = [fence, _KEPT_SECONDS * 1000, len(work)]
        for piece, agent in work:
            keys += [_work_key(agent.name), _agent_key(agent.name)]
            text = json.dumps(dataclasses.asdict(piece))
            arguments += [piece.field, piece.place, _json(Place(agent.name)), text]
        keys += [_work_key(agent) for agent, _ in kill]
        arguments += [place for _, place in kill]
        with _guard("give work to the agents"):
            return _passed(self._give(keys, arguments), fence)

    def stop(self, work: Sequence[tuple[str, str]], how: str, fence: int) -> None:
        """Marks the work of (agent, place) to end by TERM or KILL. Raises Conflict for a token that
        is too low.
        """
        keys = [_FENCE, *(_work_key(agent) for agent, _ in work)]
        with _guard("stop the agents' work"):
            _passed(self._stop(keys, [fence, how, *(place for _, place in work)]), fence)

    def ask(self, agent: str, place: str, lines: int) -> str | None:
        """The last lines of a process, from the agent that runs or ran it; None when it knows none.
        Raises Unavailable when it doesn't answer.
        """
        reply = f"{_PREFIX}reply:{uuid.uuid4().hex}"
        question = json.dumps(dataclasses.asdict(Ask(place, lines, reply)))
        with _guard("ask the agent"):
            pipe = self._redis.pipeline(transaction=True)
            pipe.rpush(_asks_key(agent), question)
            pipe.expire(_asks_key(agent), 10 * _ANSWER_SECONDS)
            pipe.execute()
            answer: Any = self._redis.blpop([reply], timeout=_ANSWER_SECONDS)
        if answer is None:
            raise Unavailable(f"agent {agent} did not answer within {_ANSWER_SECONDS} s")
        text: str | None = json.loads(answer[1])
        return text

    # The agent's side.

    def beat(self, agent: Agent, work: Work | None) -> Heard:
        """Renews the lease, and what the board keeps of the `work` at hand; answers what there is
        to do.
        """
        name = agent.name
        with _guard("renew the agent's lease"):
            pipe = self._redis.pipeline(transaction=False)
            pipe.set(_agent_key(name), _json(agent), px=int(LEASE_SECONDS * 1000))
            pipe.hgetall(_work_key(name))
            pipe.lpop(_asks_key(name), 16)
            pipe.expire(_work_key(name), _KEPT_SECONDS)
            if work is not None:
                pipe.expire(_places_key(work.job, work.generation), _KEPT_SECONDS)
            _, fields, asked, *_ = pipe.execute()
        asks = tuple(Ask(**json.loads(question)) for question in asked or ())
        if not fields:
            return Heard(None, asks=asks)
        return Heard(Work.from_json(fields[b"json"]), fields.get(b"stop", b"").decode(), asks)

    def end(self, work: Work, place: Place) -> None:
        """Writes how the process ended; its agent is free again."""
        keys = [_work_key(place.agent), _places_key(work.job, work.generation)]
        with _guard("write how a process ended"):
            self._end(keys, [work.place, work.field, _json(place)])

    def answer(self, ask: Ask, text: str | None) -> None:
        """Answers a question."""
        with _guard("answer for a log"):
            pipe = self._redis.pipeline(transaction=True)
            pipe.rpush(ask.reply, json.dumps(text))
            pipe.expire(ask.reply, 10 * _ANSWER_SECONDS)
            pipe.execute()

    def withdraw(self, agent: Agent) -> None:
        """Ends the lease at once."""
        with _guard("end the agent's lease"):
            self._redis.delete(_agent_key(agent.name), _asks_key(agent.name))


_FENCE = f"{_PREFIX}fence"


def _passed(answer: Any, fence: int) -> bool:
    text = answer.decode() if isinstance(answer, bytes) else str(answer)
    if text.startswith("fenced"):
        raise Conflict(f"token {fence} is older than {text.split()[1]}; another gateway leads")
    return text == "ok"


def _json(value: Agent | Place) -> str:
    return json.dumps(dataclasses.asdict(value))


def _agent_key(agent: str) -> str:
    return f"{_PREFIX}agent:{agent}"


def _work_key(agent: str) -> str:
    return f"{_PREFIX}work:{agent}"


def _asks_key(agent: str) -> str:
    return f"{_PREFIX}asks:{agent}"


def _places_key(job: str, generation: int) -> str:
    return f"{_PREFIX}places:{job}:{generation}"


@contextmanager
def _guard(what: str) -> Iterator[None]:
    """Turns any Redis failure into Unavailable that says what could not be done."""
    try:
        yield
    except redis.RedisError as error:
        raise Unavailable(f"Redis: could not {what}: {error}") from error
