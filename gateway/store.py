"""Everything the gateway itself keeps in Redis: job records, idempotency keys, and the leader's
lease.

Keys, all under `embermesh:gateway:`:
  job:{id}             hash {version, state, json}: a JobRecord
  jobs                 sorted set of all job ids by time of creation
  active               set of ids whose job is not in a final state
  states               hash state -> number of jobs
  idempotency:{key}    JSON {job, digest} of a submission, for a day
  leader               `token:owner` of the gateway that acts, expires unless renewed
  fence                counter the tokens are drawn from

A record is written only if its version is still the one that was read (compare-and-set, in one Lua
script with the indexes). Writes of the leader also name its lease: a gateway that lost it while it
was busy can't write any more, and a target refuses its actions by the token, which only grows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from gateway.record import JobRecord
from services.kit.errors import Conflict, InvalidInput, NotFound, Unavailable

_PREFIX = "embermesh:gateway:"
_IDEMPOTENCY_SECONDS = 86_400
_UPDATE_TRIES = 50
_MAX_PAUSE = 0.02  # seconds before another try

_SAVE = """
-- KEYS: job, jobs, active, states, leader
-- ARGV: id, expected version, state, final, created, json, lease ('' = none)
if ARGV[7] ~= '' and redis.call('GET', KEYS[5]) ~= ARGV[7] then return 'fenced' end
local version = redis.call('HGET', KEYS[1], 'version') or '0'
if version ~= ARGV[2] then return 'stale' end
local before = redis.call('HGET', KEYS[1], 'state')
if before then redis.call('HINCRBY', KEYS[4], before, -1) end
redis.call('HINCRBY', KEYS[4], ARGV[3], 1)
redis.call('HSET', KEYS[1], 'version', tonumber(ARGV[2]) + 1, 'state', ARGV[3], 'json', ARGV[6])
redis.call('ZADD', KEYS[2], ARGV[5], ARGV[1])
redis.call(ARGV[4] == '1' and 'SREM' or 'SADD', KEYS[3], ARGV[1])
return 'ok'
"""
_ACQUIRE = """
-- KEYS: leader, fence; ARGV: owner, milliseconds. Answers the new lease, or '' while there is one.
if redis.call('EXISTS', KEYS[1]) == 1 then return '' end
local lease = redis.call('INCR', KEYS[2]) .. ':' .. ARGV[1]
redis.call('SET', KEYS[1], lease, 'PX', ARGV[2])
return lease
"""
_RENEW = """
-- KEYS: leader; ARGV: lease, milliseconds (0 = end it)
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then redis.call('DEL', KEYS[1]) else redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
"""


@dataclasses.dataclass(frozen=True)
class Lease:
    """The right to act, until it expires. `token` is larger than that of every earlier leader."""

    token: int
    owner: str

    def __str__(self) -> str:
        return f"{self.token}:{self.owner}"


class JobStore:
    """Typed access to the keys above. Every method raises Unavailable when Redis is away."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._save = client.register_script(_SAVE)
        self._acquire = client.register_script(_ACQUIRE)
        self._renew = client.register_script(_RENEW)

    def ping(self) -> None:
        """Returns when Redis answers."""
        with _guard("be reached"):
            self._redis.ping()

    def create(self, record: JobRecord, key: str = "", body: bytes = b"") -> tuple[JobRecord, bool]:
        """Stores a new job; returns it and whether it is new.

        With an idempotency `key` the job of an earlier submission of the same `body` is returned
        instead. Raises Conflict when the key came with another body.
        """
        if key:
            earlier = self._claim(key, record.id, hashlib.sha256(body).hexdigest())
            if earlier != record.id:
                try:
                    return self.get(earlier), False
                except NotFound:
                    # Who claimed the key died before storing the job: finish its work.
                    record = dataclasses.replace(record, id=earlier)
        try:
            return self.save(record), True
        except Conflict:
            if not key:
                raise
            return self.get(record.id), False

    def get(self, job: str) -> JobRecord:
        """The job's record. Raises NotFound."""
        with _guard("read the job"):
            text: Any = self._redis.hget(f"{_PREFIX}job:{job}", "json")
        if text is None:
            raise NotFound(f"there is no job {job!r}")
        return JobRecord.from_json(text)

    def newest(self, limit: int) -> list[JobRecord]:
        """The newest `limit` jobs, newest first."""
        with _guard("list the jobs"):
            ids: Any = self._redis.zrevrange(f"{_PREFIX}jobs", 0, limit - 1)
        return self._records(ids)

    def active(self) -> list[JobRecord]:
        """Jobs that are not in a final state, by id."""
        with _guard("list the jobs"):
            ids: Any = self._redis.smembers(f"{_PREFIX}active")
        return self._records(sorted(ids))

    def counts(self) -> dict[str, int]:
        """State -> number of jobs in it."""
        with _guard("count the jobs"):
            counts: Any = self._redis.hgetall(f"{_PREFIX}states")
        return {state.decode(): int(count) for state, count in counts.items()}

    def save(self, record: JobRecord, lease: Lease | None = None) -> JobRecord:
        """Stores a change of the record that was read at `record.version`; returns it with the next
        version.

        Raises Conflict when somebody else changed it since, or when `lease` is not the leader's any
        more.
        """
        saved = dataclasses.replace(record, version=record.version + 1)
        keys = [f"{_PREFIX}{k}" for k in (f"job:{record.id}", "jobs", "active", "states", "leader")]
        final = "1" if record.state.final else "0"
        args: list[Any] = [record.id, record.version, str(record.state), final, record.created]
        with _guard("store the job"):
            outcome: Any = self._save(
                keys, [*args, saved.to_json(), "" if lease is None else str(lease)]
            )
        if outcome == b"fenced":
            raise Conflict(f"job {record.id}: this gateway is not the leader any more")
        if outcome != b"ok":
            raise Conflict(f"job {record.id} changed since version {record.version} was read")
        return saved

    def update(self, job: str, change: Callable[[JobRecord], JobRecord]) -> JobRecord:
        """Applies `change` to the present record, again if somebody else was faster; an equal
        record isn't stored.
        """
        for _ in range(_UPDATE_TRIES):
            record = self.get(job)
            changed = change(record)
            if changed == record:
                return record
            try:
                return self.save(changed)
            except Conflict:
                threading.Event().wait(random.uniform(0, _MAX_PAUSE))
        raise Conflict(f"job {job} changes too fast; try again")

    def _records(self, ids: list[bytes]) -> list[JobRecord]:
        with _guard("read the jobs"):
            pipe = self._redis.pipeline(transaction=False)
            for job in ids:
                pipe.hget(f"{_PREFIX}job:{job.decode()}", "json")
            texts: list[Any] = pipe.execute()
        return [JobRecord.from_json(t) for t in texts if t is not None]

    def _claim(self, key: str, job: str, digest: str) -> str:
        """The id the idempotency key stands for: `job`, or that of an earlier submission."""
        name, claim = f"{_PREFIX}idempotency:{key}", json.dumps({"job": job, "digest": digest})
        with _guard("store the idempotency key"):
            if self._redis.set(name, claim, nx=True, ex=_IDEMPOTENCY_SECONDS):
                return job
            text: Any = self._redis.get(name)
        earlier = json.loads(text or claim)
        if earlier["digest"] != digest:
            raise Conflict(
                f"Idempotency-Key {key!r} was used with another body, for job {earlier['job']}"
            )
        return str(earlier["job"])

    def acquire(self, owner: str, seconds: float) -> Lease | None:
        """Becomes the leader for `seconds`; None while somebody is."""
        with _guard("acquire the leader's lease"):
            keys = [f"{_PREFIX}leader", f"{_PREFIX}fence"]
            lease: Any = self._acquire(keys, [owner, int(seconds * 1000)])
        return Lease(int(lease.split(b":")[0]), owner) if lease else None

    def renew(self, lease: Lease, seconds: float) -> bool:
        """Keeps the lease for `seconds` from now; False when it was lost."""
        with _guard("renew the leader's lease"):
            return bool(self._renew([f"{_PREFIX}leader"], [str(lease), int(seconds * 1000)]))

    def release(self, lease: Lease) -> None:
        """Ends the lease, so that another gateway can act at once."""
        with _guard("end the leader's lease"):
            self._renew([f"{_PREFIX}leader"], [str(lease), 0])


def connect(url: str) -> redis.Redis:
    """A client that connects at its first use and fails fast. Raises InvalidInput for a malformed
    URL.
    """
    try:
        return redis.Redis.from_url(
            url,
            socket_timeout=3,
            socket_connect_timeout=2,
            health_check_interval=15,
            retry=Retry(
                NoBackoff(), 1
            ),  # a dropped connection is opened anew once; longer waits are the caller's
        )
    except ValueError as error:
        raise InvalidInput(f"redis_url {url!r}: {error}") from error


@contextmanager
def _guard(what: str) -> Iterator[None]:
    """Turns any Redis failure into Unavailable that says what could not be done."""
    try:
        yield
    except redis.RedisError as error:
        raise Unavailable(f"Redis: could not {what}: {error}") from error
