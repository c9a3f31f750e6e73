"""The last lines of processes that failed, kept in Redis: a pod's or a container's own log goes
with it, and the question why it failed comes later.

Key `embermesh:gateway:logs:{job}`: list of JSON, newest first. It is bounded in every direction:
LINES and BYTES of a process, PROCESSES of a job, DAYS after the last failure. What looks like a
credential is masked; our processes write none, but a user's own model may.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from typing import Any

import redis

from gateway.store import PREFIX, guard
from gateway.targets import Target
from services.kit.discovery import Role
from services.kit.errors import EmbermeshError, NotFound

log = logging.getLogger(__name__)

LINES, BYTES = 50, 8_192
PROCESSES, DAYS = 16, 7
_MASK = "…"
# What is masked is the last group.
_SECRETS = (
    re.compile(r"(://)([^\s/@]+)(?=@)"),  # user:password of a URL
    re.compile(r"(?i)(bearer\s+)([^\s\"']+)"),
    re.compile(r"()(\b(?:AKIA|ASIA)[0-9A-Z]{16}\b)"),
    re.compile(
        r"(?i)((?:password|passwd|secret|token|api[_-]?key|access[_-]?key)[\w-]*[\"']?\s*[=:]\s*[\"']?)"
        r"([^\s\"',}]+)"
    ),
)


class KeptLogs:
    """Raises Unavailable when Redis is away. Thread-safe."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def keep(
        self, target: Target, job: str, generation: int, places: Iterable[tuple[Role, int]]
    ) -> None:
        """Takes the last lines of these processes from the target, as far as it has them. A target
        that doesn't answer is asked no further: the job's next step is not to wait for its log.
        """
        for role, rank in places:
            try:
                text = target.logs(job, generation, role, rank, LINES)
            except NotFound:
                continue
            except EmbermeshError as error:
                log.warning("job %s: the log of %s %d is not kept: %s", job, role, rank, error)
                return
            self._store(job, {"place": f"{generation}:{role}:{rank}", "text": shortened(text)})

    def find(self, job: str, generation: int, role: Role, rank: int, tail: int) -> str:
        """The last `tail` of the lines kept of a process. Raises NotFound."""
        with guard("read the kept logs"):
            entries: Any = self._redis.lrange(_key(job), 0, -1)
        place = f"{generation}:{role}:{rank}"
        for entry in map(json.loads, entries):
            if entry["place"] == place:
                return "".join(entry["text"].splitlines(keepends=True)[-tail:])
        raise NotFound(f"no lines of {role} {rank} of job {job}, generation {generation}, are kept")

    def _store(self, job: str, entry: dict[str, str]) -> None:
        with guard("keep the log"), self._redis.pipeline() as pipe:
            pipe.lpush(_key(job), json.dumps(entry))
            pipe.ltrim(_key(job), 0, PROCESSES - 1)
            pipe.expire(_key(job), DAYS * 86_400)
            pipe.execute()


def shortened(text: str) -> str:
    """Its last LINES lines, at most BYTES bytes of UTF-8, credentials masked."""
    for pattern in _SECRETS:
        text = pattern.sub(rf"\1{_MASK}", text)
    last = "".join(text.splitlines(keepends=True)[-LINES:])
    return last.encode()[-BYTES:].decode(errors="ignore")


def _key(job: str) -> str:
    return f"{PREFIX}logs:{job}"
