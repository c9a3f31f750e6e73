"""The job's registry in Redis: its run (attempt, spec, partition map), leases of members, events.

Keys, all under `embermesh:`:
  run:{job}         JSON `Run` of the current generation, written by the gateway only
  runs              set of job ids whose run is active
  member:{job}:{generation}:{role}:{rank}:{incarnation}
                    JSON `Member`, expires unless renewed every second or so
  members:{job}:{generation}
                    set of the keys above, so that nobody searches Redis for them; it may name
                    leases that have ended
  events:{job}      stream of {time, kind, message}, capped
  checkpoint:{job}  JSON of the newest complete checkpoint, by the checkpoint service only

A lease that can't be renewed because Redis is away is not fatal: a process goes on, retries, and is
seen again when Redis is back. Nothing here knows what a job does.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from services.kit.errors import DeadlineExceeded, InvalidInput, NotFound, Unavailable
from services.kit.net import without_password

log = logging.getLogger(__name__)

_PREFIX = "embermesh:"
_EVENTS_KEPT = 1_000
LEASE_SECONDS = 6.0
RENEW_SECONDS = 1.0
_INDEX_SECONDS = 3600  # longer than any lease
_EVENT_ID = re.compile(r"\d{1,20}(-\d{1,20})?")


class Role(str, enum.Enum):
    """What a process of a job does."""

    SPARSE_PS = "sparse-ps"
    DENSE_PS = "dense-ps"
    TRAINER = "trainer"

    def __str__(self) -> str:
        return self.value


class Phase(str, enum.Enum):
    """Where a member stands; `status` of a Member explains it."""

    STARTING = "starting"
    READY = "ready"  # serves calls, or (trainer) takes steps
    DONE = "done"  # trainer: no more data, evaluation finished; still answers Pause
    FAILED = "failed"  # is about to exit; `error` and `permanent` say why

    def __str__(self) -> str:
        return self.value


@dataclasses.dataclass(frozen=True)
class Member:
    """One process of a job, as it describes itself."""

    job: str
    generation: int
    role: Role
    rank: int
    address: str = ""  # gRPC host:port
    metrics_address: str = ""  # HTTP host:port of /metrics
    phase: Phase = Phase.STARTING
    error: str = ""
    permanent: bool = False  # the error is in the input; a restart can't cure it
    # E.g. step, samples, auc, loss, rows.
    status: dict[str, Any] = dataclasses.field(default_factory=dict)
    incarnation: int = 0  # of trainers: 0 the first process of the rank, higher for replacements

    def to_json(self) -> str:
        """JSON text with enum values as strings."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Member:
        """Inverse of to_json."""
        fields = json.loads(text)
        return cls(**{**fields, "role": Role(fields["role"]), "phase": Phase(fields["phase"])})


def incarnation_of(incarnations: Sequence[int], role: Role, rank: int) -> int:
    """Which process of a place works, `incarnations` being those of the trainers (see Run)."""
    return incarnations[rank] if role == Role.TRAINER and rank < len(incarnations) else 0


@dataclasses.dataclass(frozen=True)
class Run:
    """One attempt (generation) of a job: everything its processes need to configure themselves."""

    job: str
    generation: int
    spec: dict[str, Any]  # a services.api.JobSpec as JSON
    epoch: int  # version of `owners`
    owners: list[int]  # partition -> sparse-PS shard, one entry per partition
    restore: str = ""  # URI of the manifest to start from; empty = from scratch
    active: bool = True  # False once the job is over; the checkpoint service then leaves it alone
    # Of each trainer rank the incarnation that works; empty: all are the first. The highest of them
    # is the assignment epoch of the source partitions.
    incarnations: list[int] = dataclasses.field(default_factory=list)

    def incarnation(self, role: Role, rank: int) -> int:
        """Of the process that has this place now."""
        return incarnation_of(self.incarnations, role, rank)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    id: str
    uri: str  # of its manifest
    created: float  # Unix seconds
    samples: int
    rows: int
    bytes: int


class Registry:
    """Typed access to the keys above. `client` is a redis.Redis with timeouts, see `connect`."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def publish_run(self, run: Run) -> None:
        """Makes `run` the job's current attempt."""
        with _guard("publish the run"):
            pipe = self._redis.pipeline(transaction=True)
            pipe.set(f"{_PREFIX}run:{run.job}", json.dumps(dataclasses.asdict(run)))
            change = pipe.sadd if run.active else pipe.srem
            change(f"{_PREFIX}runs", run.job)
            pipe.execute()

    def run(self, job: str) -> Run:
        """The job's current attempt. Raises NotFound."""
        with _guard("read the run"):
            text: Any = self._redis.get(f"{_PREFIX}run:{job}")
        if text is None:
            raise NotFound(f"job {job!r} has no run in Redis")
        return Run(**json.loads(text))

    def active_runs(self) -> list[Run]:
        """Runs of all jobs that are not over."""
        with _guard("list the runs"):
            jobs: Any = self._redis.smembers(f"{_PREFIX}runs")
            keys = [f"{_PREFIX}run:{_text(job)}" for job in sorted(jobs)]
            texts: Any = self._redis.mget(keys) if keys else []
        runs = (Run(**json.loads(t)) for t in texts if t is not None)
        return [r for r in runs if r.active]

    def forget_run(self, job: str) -> None:
        """Removes the job's run, events and the pointer to its newest checkpoint."""
        keys = [f"{_PREFIX}{kind}:{job}" for kind in ("run", "events", "checkpoint")]
        with _guard("remove the run"):
            pipe = self._redis.pipeline(transaction=True)
            pipe.delete(*keys)
            pipe.srem(f"{_PREFIX}runs", job)
            pipe.execute()

    def announce(self, member: Member, lease_seconds: float = LEASE_SECONDS) -> None:
        """Writes or renews a member's lease."""
        with _guard("renew the lease"):
            index, key = _index_key(member.job, member.generation), _member_key(member)
            pipe = self._redis.pipeline(transaction=False)
            pipe.set(key, member.to_json(), px=int(lease_seconds * 1000))
            pipe.sadd(index, key)
            pipe.expire(index, _INDEX_SECONDS)
            pipe.execute()

    def withdraw(self, member: Member) -> None:
        """Ends a member's lease at once."""
        with _guard("end the lease"):
            key = _member_key(member)
            pipe = self._redis.pipeline(transaction=False)
            pipe.delete(key)
            pipe.srem(_index_key(member.job, member.generation), key)
            pipe.execute()

    def members(self, job: str, generation: int) -> list[Member]:
        """Members whose lease is alive, by role and rank; of a rank the newest incarnation."""
        with _guard("list the members"):
            keys: Any = self._redis.smembers(_index_key(job, generation))
            texts: Any = self._redis.mget(sorted(keys)) if keys else []
        found = [Member.from_json(t) for t in texts if t is not None]
        newest = {(m.role, m.rank): m for m in sorted(found, key=lambda m: m.incarnation)}
        return [newest[place] for place in sorted(newest)]

    def wait_members(
        self,
        job: str,
        generation: int,
        role: Role,
        count: int,
        timeout: float,
        stop: threading.Event,
    ) -> list[Member]:
        """Waits until ranks 0..count-1 of `role` are ready or done; returns them by rank.

        A Redis that is away for a while is waited for as well. Raises DeadlineExceeded that names
        the missing ranks, Unavailable when `stop` is set.
        """
        deadline = time.monotonic() + timeout
        ready: dict[int, Member] = {}
        trouble = ""
        while True:
            try:
                ready = self._ready(job, generation, role)
                trouble = ""
            except Unavailable as error:
                trouble = f" ({error})"
            missing = [r for r in range(count) if r not in ready]
            if not missing and not trouble:
                return [ready[r] for r in range(count)]
            if time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"{role} {missing or 'leases'} of job {job}, generation {generation}: "
                    f"not ready within {timeout:g} s{trouble}"
                )
            if stop.wait(0.1):
                raise Unavailable(f"stopped while waiting for {role} {missing} of job {job}")

    def publish_checkpoint(self, job: str, checkpoint: Checkpoint) -> None:
        """Names the job's newest complete checkpoint."""
        with _guard("publish the checkpoint"):
            text = json.dumps(dataclasses.asdict(checkpoint))
            self._redis.set(f"{_PREFIX}checkpoint:{job}", text)

    def latest_checkpoint(self, job: str) -> Checkpoint | None:
        """The job's newest complete checkpoint, if there is one."""
        with _guard("read the newest checkpoint"):
            text: Any = self._redis.get(f"{_PREFIX}checkpoint:{job}")
        return None if text is None else Checkpoint(**json.loads(text))

    def emit(self, job: str, kind: str, message: str) -> None:
        """Appends to the job's events; about the newest thousand are kept."""
        event: Any = {"time": f"{time.time():.3f}", "kind": kind, "message": message}
        with _guard("append an event"):
            self._redis.xadd(f"{_PREFIX}events:{job}", event, maxlen=_EVENTS_KEPT, approximate=True)

    def events(self, job: str, after: str = "-") -> list[dict[str, str]]:
        """Events with their `id`, oldest first; `after` an id gives only later ones.

        Raises InvalidInput when `after` is no event id.
        """
        if after != "-" and not _EVENT_ID.fullmatch(after):
            raise InvalidInput(f"after: {after!r} is not the id of an event")
        start = "-" if after == "-" else f"({after}"
        with _guard("read the events"):
            entries: Any = self._redis.xrange(f"{_PREFIX}events:{job}", min=start)
        return [{"id": _text(i), **_texts(fields)} for i, fields in entries]

    def _ready(self, job: str, generation: int, role: Role) -> dict[int, Member]:
        """Members of `role` that serve, by rank."""
        serving = (Phase.READY, Phase.DONE)
        members = self.members(job, generation)
        return {m.rank: m for m in members if m.role == role and m.phase in serving}


class Heartbeat:
    """Renews a member's lease on its own thread; `describe()` gives the Member as it is now."""

    def __init__(
        self, registry: Registry, describe: Callable[[], Member], every: float = RENEW_SECONDS
    ) -> None:
        self._registry, self._describe, self._every = registry, describe, every
        self._order = threading.Lock()  # an older description never overwrites a newer one
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Announces once (raises Unavailable when Redis is away), then renews until `close`."""
        self._registry.announce(self._describe())
        self._thread.start()

    def beat(self) -> None:
        """Announces now, e.g. after a change of phase; a Redis that is away is only logged."""
        try:
            with self._order:
                self._registry.announce(self._describe())
        except Unavailable as error:
            log.warning("%s", error)

    def close(self, *, withdraw: bool) -> None:
        """Stops renewing.

        `withdraw` ends the lease now, else the last word stays readable for ten lease times.
        """
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        try:
            member = self._describe()
            if withdraw:
                self._registry.withdraw(member)
            else:
                self._registry.announce(member, lease_seconds=10 * LEASE_SECONDS)
        except Unavailable as error:
            log.warning("%s", error)
        except Exception:  # as in _loop; the reason to close is worth more than this one
            log.exception("could not describe this member")

    def _loop(self) -> None:
        while not self._stop.wait(self._every):
            try:
                self.beat()
            except Exception:  # a faulty status() must not cost a process its lease for good
                log.exception("could not describe this member")


def connect(url: str) -> redis.Redis:
    """A client with deadlines, safe to share between threads.

    Raises InvalidInput for what is no Redis URL, Unavailable that names the server when none
    answers.
    """
    try:
        client = redis.Redis.from_url(
            url,
            socket_timeout=5,
            socket_connect_timeout=3,
            health_check_interval=15,
            retry=Retry(ExponentialWithJitterBackoff(base=0.05, cap=0.5), retries=2),
        )
    except ValueError as error:
        raise InvalidInput(f"redis_url {without_password(url)!r}: {error}") from error
    try:
        client.ping()
    except redis.RedisError as error:
        raise Unavailable(f"no Redis at {without_password(url)}: {error}") from error
    return client


@contextmanager
def _guard(what: str) -> Iterator[None]:
    """Turns any Redis failure into Unavailable that says what could not be done."""
    try:
        yield
    except redis.RedisError as error:
        raise Unavailable(f"Redis: could not {what}: {error}") from error


def _member_key(member: Member) -> str:
    place = f"{member.role}:{member.rank}:{member.incarnation}"
    return f"{_PREFIX}member:{member.job}:{member.generation}:{place}"


def _index_key(job: str, generation: int) -> str:
    return f"{_PREFIX}members:{job}:{generation}"


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _texts(fields: dict[Any, Any]) -> dict[str, str]:
    return {_text(key): _text(value) for key, value in fields.items()}
