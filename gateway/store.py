"""Everything the gateway itself keeps in Redis: job records, idempotency keys, and the leader's
lease.

Keys, all under `embermesh:gateway:`:
  job:{id}             hash {version, state, json}: a JobRecord
  jobs                 sorted set of all job ids by time of creation
  jobs:{tenant}        the same of one tenant
  active               set of ids whose job is not at rest (over, or paused)
  active:{tenant}      the same of one tenant
  admissions:{tenant}  counter of the tenant's admitted changes, see `Admit`
  states               hash state -> number of jobs
  idempotency:{tenant}:{key}  JSON {job, digest} of a submission, for a day
  logs:{job}           see gateway.last_logs
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
from services.api.access import ALL_TENANTS
from services.kit.errors import Conflict, InvalidInput, NotFound, Unavailable
from services.kit.net import without_password

PREFIX = "embermesh:gateway:"
_IDEMPOTENCY_SECONDS = 86_400
_UPDATE_TRIES = 50
_MAX_PAUSE = 0.02  # seconds before another try

Admit = Callable[[JobRecord | None, JobRecord, list[JobRecord]], None]
"""Raises when a job (as it was, None = new; as it shall be) has no room beside the tenant's other
active ones.

What it saw can't change before the job is stored: every admitted change of a tenant moves its
counter, and one that finds the counter moved looks again.
"""

_SAVE = """
-- KEYS: job, jobs, active, states, leader, jobs:tenant, active:tenant, admissions:tenant
-- ARGV: id, expected version, state, at rest, created, json, lease ('' = none),
--       admissions seen ('' = not asked)
if ARGV[7] ~= '' and redis.call('GET', KEYS[5]) ~= ARGV[7] then return 'fenced' end
if ARGV[8] ~= '' and (redis.call('GET', KEYS[8]) or '0') ~= ARGV[8] then return 'raced' end
local version = redis.call('HGET', KEYS[1], 'version') or '0'
if version ~= ARGV[2] then return 'stale' end
local before = redis.call('HGET', KEYS[1], 'state')
if before then redis.call('HINCRBY', KEYS[4], before, -1) end
redis.call('HINCRBY', KEYS[4], ARGV[3], 1)
redis.call('HSET', KEYS[1], 'version', tonumber(ARGV[2]) + 1, 'state', ARGV[3], 'json', ARGV[6])
for _, key in ipairs({KEYS[2], KEYS[6]}) do redis.call('ZADD', key, ARGV[5], ARGV[1]) end
for _, key in ipairs({KEYS[3], KEYS[7]}) do
  redis.call(ARGV[4] == '1' and 'SREM' or 'SADD', key, ARGV[1])
end
if ARGV[8] ~= '' then redis.call('INCR', KEYS[8]) end
return 'ok'
"""
_PAGE = """
-- KEYS: jobs; ARGV: id the page comes after ('' = from the newest), length
local first = 0
if ARGV[1] ~= '' then
  local rank = redis.call('ZREVRANK', KEYS[1], ARGV[1])
  if not rank then return redis.error_reply('NOCURSOR') end
  first = rank + 1
end
return redis.call('ZREVRANGE', KEYS[1], first, first + ARGV[2] - 1)
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


class Raced(Conflict):
    """The tenant's counter moved between the look and the write."""


class JobStore:
    """Typed access to the keys above. Every method raises Unavailable when Redis is away."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._save = client.register_script(_SAVE)
        self._page = client.register_script(_PAGE)
        self._acquire = client.register_script(_ACQUIRE)
        self._renew = client.register_script(_RENEW)

    def ping(self) -> None:
        """Returns when Redis answers."""
        with guard("be reached"):
            self._redis.ping()

    def create(
        self, record: JobRecord, key: str = "", body: bytes = b"", admit: Admit | None = None
    ) -> tuple[JobRecord, bool]:
        """Stores a new job; returns it and whether it is new.

        With an idempotency `key` the job of an earlier submission of the same `body` in the same
        tenant is returned instead. Raises Conflict when the key came with another body.
        """
        if key:
            earlier = self._claim(record, key, hashlib.sha256(body).hexdigest())
            if earlier != record.id:
                try:
                    return self.get(earlier), False
                except NotFound:
                    # Who claimed the key died before storing the job: finish its work.
                    record = dataclasses.replace(record, id=earlier)
        try:
            return self._store(None, record, admit), True
        except Conflict:
            if not key:
                raise
            return self.get(record.id), False

    def get(self, job: str) -> JobRecord:
        """The job's record. Raises NotFound."""
        with guard("read the job"):
            text: Any = self._redis.hget(f"{PREFIX}job:{job}", "json")
        if text is None:
            raise NotFound(f"there is no job {job!r}")
        return JobRecord.from_json(text)

    def page(self, tenant: str, limit: int, after: str = "") -> list[JobRecord]:
        """The tenant's newest `limit` jobs (* = everybody's), newest first; only those older than
        job `after`. Jobs that come meanwhile shift nothing. Raises InvalidInput for an `after` that
        isn't there.
        """
        try:
            with guard("list the jobs"):
                ids: Any = self._page([_of("jobs", tenant)], [after, limit])
        except Unavailable as error:
            if isinstance(error.__cause__, redis.ResponseError) and after:
                raise InvalidInput(f"cursor: {after!r} names no page of this list") from None
            raise
        return self._records(ids)

    def active(self, tenant: str = ALL_TENANTS) -> list[JobRecord]:
        """Jobs (of one tenant) that are neither over nor paused, by id."""
        with guard("list the jobs"):
            ids: Any = self._redis.smembers(_of("active", tenant))
        return self._records(sorted(ids))

    def tenants(self) -> list[str]:
        """Tenants that ever had a job, by name."""
        start = f"{PREFIX}jobs:"
        with guard("list the tenants"):
            keys = {key.decode() for key in self._redis.scan_iter(f"{start}*", count=1000)}
        return sorted(key.removeprefix(start) for key in keys)

    def counts(self) -> dict[str, int]:
        """State -> number of jobs in it."""
        with guard("count the jobs"):
            counts: Any = self._redis.hgetall(f"{PREFIX}states")
        return {state.decode(): int(count) for state, count in counts.items()}

    def save(
        self, record: JobRecord, lease: Lease | None = None, admissions: str = ""
    ) -> JobRecord:
        """Stores a change of the record that was read at `record.version`; returns it with the next
        version.

        Raises Conflict when somebody else changed it since, when `lease` is not the leader's any
        more, or when the tenant's counter isn't at `admissions` any more.
        """
        saved = dataclasses.replace(record, version=record.version + 1)
        names = (f"job:{record.id}", "jobs", "active", "states", "leader")
        kinds = ("jobs", "active", "admissions")
        keys = [*(f"{PREFIX}{k}" for k in names), *(_of(kind, record.tenant) for kind in kinds)]
        at_rest = "1" if record.state.at_rest else "0"
        args: list[Any] = [record.id, record.version, str(record.state), at_rest, record.created]
        with guard("store the job"):
            outcome: Any = self._save(
                keys, [*args, saved.to_json(), "" if lease is None else str(lease), admissions]
            )
        if outcome == b"fenced":
            raise Conflict(f"job {record.id}: this gateway is not the leader any more")
        if outcome == b"raced":
            raise Raced(f"tenant {record.tenant} admitted another job meanwhile")
        if outcome != b"ok":
            raise Conflict(f"job {record.id} changed since version {record.version} was read")
        return saved

    def update(
        self, job: str, change: Callable[[JobRecord], JobRecord], admit: Admit | None = None
    ) -> JobRecord:
        """Applies `change` to the present record, again if somebody else was faster; an equal
        record isn't stored.
        """
        for _ in range(_UPDATE_TRIES):
            record = self.get(job)
            changed = change(record)
            if changed == record:
                return record
            try:
                return self._store(record, changed, admit)
            except Conflict:
                threading.Event().wait(random.uniform(0, _MAX_PAUSE))
        raise Conflict(f"job {job} changes too fast; try again")

    def _store(self, before: JobRecord | None, record: JobRecord, admit: Admit | None) -> JobRecord:
        """`save`, if `admit` lets it."""
        if admit is None:
            return self.save(record)
        for _ in range(_UPDATE_TRIES):
            with guard("read the tenant's admissions"):
                seen: Any = self._redis.get(_of("admissions", record.tenant))
            others = [r for r in self.active(record.tenant) if r.id != record.id]
            admit(before, record, others)
            try:
                return self.save(record, admissions="0" if seen is None else seen.decode())
            except Raced:
                threading.Event().wait(random.uniform(0, _MAX_PAUSE))
        raise Conflict(f"tenant {record.tenant} admits jobs too fast; try again")

    def _records(self, ids: list[bytes]) -> list[JobRecord]:
        with guard("read the jobs"):
            pipe = self._redis.pipeline(transaction=False)
            for job in ids:
                pipe.hget(f"{PREFIX}job:{job.decode()}", "json")
            texts: list[Any] = pipe.execute()
        return [JobRecord.from_json(t) for t in texts if t is not None]

    def _claim(self, record: JobRecord, key: str, digest: str) -> str:
        """The id the idempotency key stands for: the record's, or that of an earlier submission."""
        name, job = f"{PREFIX}idempotency:{record.tenant}:{key}", record.id
        claim = json.dumps({"job": job, "digest": digest})
        with guard("store the idempotency key"):
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
        with guard("acquire the leader's lease"):
            keys = [f"{PREFIX}leader", f"{PREFIX}fence"]
            lease: Any = self._acquire(keys, [owner, int(seconds * 1000)])
        return Lease(int(lease.split(b":")[0]), owner) if lease else None

    def renew(self, lease: Lease, seconds: float) -> bool:
        """Keeps the lease for `seconds` from now; False when it was lost."""
        with guard("renew the leader's lease"):
            return bool(self._renew([f"{PREFIX}leader"], [str(lease), int(seconds * 1000)]))

    def release(self, lease: Lease) -> None:
        """Ends the lease, so that another gateway can act at once."""
        with guard("end the leader's lease"):
            self._renew([f"{PREFIX}leader"], [str(lease), 0])


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
        raise InvalidInput(f"redis_url {without_password(url)!r}: {error}") from error


def _of(kind: str, tenant: str) -> str:
    """Key of a tenant's own index, or of everybody's."""
    return f"{PREFIX}{kind}" if tenant == ALL_TENANTS else f"{PREFIX}{kind}:{tenant}"


@contextmanager
def guard(what: str) -> Iterator[None]:
    """Turns any Redis failure into Unavailable that says what could not be done."""
    try:
        yield
    except redis.RedisError as error:
        raise Unavailable(f"Redis: could not {what}: {error}") from error
