"""The last lines of processes that failed outlive their containers: real HTTP and Redis; the
processes are the test's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from embermesh.client import Client
from embermesh.follow import read
from gateway.last_logs import DAYS, PROCESSES, KeptLogs
from services.kit.discovery import Phase, Role
from services.kit.errors import NotFound, Unavailable
from tests.integration.gateway_harness import (
    FakeTarget,
    Harness,
    problem,
    running_gateway,
    wait_for,
)


@pytest.fixture
def harness(redis_db: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[Harness]:
    with running_gateway(redis_url, tmp_path) as harness:
        yield harness


def remove(target: FakeTarget, generation: int) -> None:
    """The containers of a generation are gone with their logs."""
    for place in [place for place in target.table if place[1] == generation]:
        del target.table[place]


def test_the_logs_of_a_lost_generation_can_be_read_when_its_containers_are_gone(
    harness: Harness,
) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    harness.target.report(job, 1, Role.SPARSE_PS, 1, Phase.FAILED, error="no memory")
    harness.wait(job, "running", generation=2)
    remove(harness.target, 1)
    logs = f"/v1/jobs/{job}/logs"
    kept = harness.http.get(f"{logs}?role=sparse-ps&rank=1&generation=1").raise_for_status()
    assert kept.text == "50 lines of sparse-ps 1, generation 1\n"
    detail = problem(harness.http.get(f"{logs}?role=sparse-ps&rank=0&generation=1"), 404).detail
    assert "sparse-ps 0 has no log" in detail, "the target's own words"
    with Client(str(harness.http.base_url)) as client:
        chunks = list(read(client, job, None, None, 5, generation=1))
    assert [(c.role, c.rank) for c in chunks] == [("sparse-ps", 1)]


def test_of_a_trainer_that_was_replaced_too(harness: Harness) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    harness.target.report(job, 1, Role.TRAINER, 1, Phase.FAILED, error="lost")
    wait_for(lambda: "replacing" in harness.events(job))
    wait_for(lambda: len(harness.target.started) == 6)
    assert harness.gateway.kept.find(job, 1, Role.TRAINER, 1, 100)
    # The target knows the replacement's log, and that is what is read.
    assert harness.http.get(f"/v1/jobs/{job}/logs?rank=1").text.startswith("200 lines of")


class Logs:
    """A target that only has logs."""

    def __init__(self, answer: str | Exception) -> None:
        self.answer, self.asked = answer, 0

    def logs(self, job: str, generation: int, role: Role, rank: int, tail: int) -> str:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return f"{self.answer} {rank}\n"


def test_what_is_kept_of_a_job_is_bounded_and_ends(redis_db: redis.Redis) -> None:
    kept, target = KeptLogs(redis_db), Logs("a\nb")
    places = [(Role.TRAINER, rank) for rank in range(PROCESSES + 3)]
    kept.keep(target, "j", 1, places)  # type: ignore[arg-type]
    assert kept.find("j", 1, Role.TRAINER, 3, 1) == "b 3\n"
    assert kept.find("j", 1, Role.TRAINER, PROCESSES + 2, 9) == f"a\nb {PROCESSES + 2}\n"
    for generation, rank in ((1, 2), (2, 3)):
        with pytest.raises(NotFound, match=f"trainer {rank} of job j, generation {generation}"):
            kept.find("j", generation, Role.TRAINER, rank, 9)
    (key,) = redis_db.keys("*logs*")
    assert 0 < redis_db.ttl(key) <= DAYS * 86_400


def test_the_newest_lines_of_a_place_are_found(redis_db: redis.Redis) -> None:
    kept = KeptLogs(redis_db)
    for text in ("first", "second"):
        kept.keep(Logs(text), "j", 1, [(Role.TRAINER, 0)])  # type: ignore[arg-type]
    assert kept.find("j", 1, Role.TRAINER, 0, 9) == "second 0\n"


def test_a_target_that_does_not_answer_is_asked_once(
    redis_db: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    kept, target = KeptLogs(redis_db), Logs(Unavailable("the node is away"))
    kept.keep(target, "j", 1, [(Role.TRAINER, 0), (Role.TRAINER, 1)])  # type: ignore[arg-type]
    assert target.asked == 1
    assert "the log of trainer 0 is not kept: the node is away" in caplog.text
    missing = Logs(NotFound("no pod"))
    kept.keep(missing, "j", 1, [(Role.TRAINER, 0), (Role.TRAINER, 1)])  # type: ignore[arg-type]
    assert missing.asked == 2
    assert redis_db.keys("*logs*") == []
