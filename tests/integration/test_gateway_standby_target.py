"""Target `standby` with a real Redis and real agents: work given and ended, agents and gateways
that die at any moment, tokens that are too low.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from gateway import store as storing
from gateway.targets import Process, ProcessSpec
from gateway.targets.standby import StandbyTarget
from services.kit.discovery import Registry, Role, Run
from services.kit.errors import Conflict, NoRoom, NotFound
from services.kit.standby import Board
from tests.fixtures.standby_agents import Fleet
from tests.integration.gateway_harness import ROOT, process_exists, running_gateway, wait_for

JOB = "a-aaaaaa"


@pytest.fixture
def board(redis_db: redis.Redis, redis_url: str) -> Board:
    registry = Registry(storing.connect(redis_url))
    registry.publish_run(Run(JOB, 1, {}, 1, []))
    return Board(storing.connect(redis_url))


@pytest.fixture
def target(board: Board) -> StandbyTarget:
    return StandbyTarget(board, grace=0.3, patience=0.5)


@pytest.fixture
def fleet(board: Board, redis_url: str, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(redis_url, tmp_path, board)
    yield fleet
    fleet.close()


def spec(module: str, rank: int = 0, *arguments: str, incarnation: int = 0) -> ProcessSpec:
    env = {
        "EMBERMESH_MEMBER_JOB": JOB,
        "EMBERMESH_MEMBER_REDIS_URL": "redis://:the-gateways-secret@other/0",
        "EMBERMESH_TLS_KEY": "/the/gateways/key.pem",
    }
    return ProcessSpec(JOB, 1, Role.TRAINER, rank, module, arguments, env, incarnation)


def only(target: StandbyTarget) -> Process:
    (process,) = target.observe(JOB, 1)
    return process


def log(target: StandbyTarget, rank: int = 0) -> str:
    try:
        return target.logs(JOB, 1, Role.TRAINER, rank, 100)
    except NotFound:
        return ""


def free(board: Board) -> int:
    return sum(board.agents().values())


def test_a_process_gets_its_arguments_and_its_agents_own_redis(
    target: StandbyTarget, fleet: Fleet, board: Board, redis_db: redis.Redis, redis_url: str
) -> None:
    fleet.start("trainer", wait_for)
    target.start([spec("talker", 0, "one", "two")], fence=1)
    for key in redis_db.keys("embermesh:standby:work:*"):
        written = str(redis_db.hgetall(key))
        assert JOB in written
        assert "the-gateways-secret" not in written and "key.pem" not in written
    wait_for(lambda: not only(target).alive)
    ended = only(target)
    assert (ended.exit_code, "oops" in ended.last_words) == (3, True)
    assert log(target).splitlines()[:1] == [f"['one', 'two'] {JOB}"]
    assert redis_url in log(target)
    assert "oops" in fleet.log(0), "passed on to the container's log"
    wait_for(lambda: free(board) == 1)
    target.start([spec("talker", 0, "one", "two")], fence=1)
    assert free(board) == 1, "what was started once is not started again"


def test_stop_asks_and_kill_ends(target: StandbyTarget, fleet: Fleet, board: Board) -> None:
    fleet.start("trainer", wait_for)
    fleet.start("dense-ps,trainer", wait_for)
    target.start([spec("sleeper"), spec("stubborn", rank=1)], fence=1)
    wait_for(lambda: log(target) == log(target, 1) == "up\n")
    target.stop(JOB, 1, kill=False, fence=1)
    wait_for(lambda: {p.rank: p.alive for p in target.observe(JOB, 1)} == {0: False, 1: True})
    target.stop(JOB, 1, kill=True, fence=1)
    wait_for(lambda: free(board) == 2)
    codes = {p.rank: p.exit_code for p in target.observe(JOB, 1)}
    assert codes == {0: -signal.SIGTERM, 1: -signal.SIGKILL}


def test_a_generation_is_placed_whole_or_not_at_all(
    target: StandbyTarget, fleet: Fleet, board: Board
) -> None:
    fleet.start("trainer", wait_for)
    with pytest.raises(NoRoom, match=r"2 trainer \(free: 1 of 1 agents\)"):
        target.start([spec("sleeper"), spec("sleeper", rank=1)], fence=1)
    assert target.observe(JOB, 1) == [] and free(board) == 1
    fleet.start("trainer", wait_for)
    target.start([spec("sleeper"), spec("sleeper", rank=1)], fence=1)
    assert [p.alive for p in target.observe(JOB, 1)] == [True, True]


def test_an_agent_killed_by_sigkill_takes_its_process_along(
    target: StandbyTarget, fleet: Fleet, board: Board
) -> None:
    name = fleet.start("trainer", wait_for)
    target.start([spec("pid")], fence=1)
    wait_for(lambda: log(target).strip().isdigit())
    pid = int(log(target))
    assert process_exists(pid)
    fleet.signal(0, signal.SIGKILL)
    wait_for(lambda: not process_exists(pid))
    wait_for(lambda: not only(target).alive, timeout=15)
    assert only(target) == Process(Role.TRAINER, 0, False, None, f"agent {name} is gone\n")
    with pytest.raises(NotFound, match="is gone with its log"):
        target.logs(JOB, 1, Role.TRAINER, 0, 10)
    fleet.start("trainer", wait_for)  # as a restart policy does
    assert free(board) == 1
    target.start([spec("sleeper", incarnation=1)], fence=1)
    wait_for(lambda: log(target) == "up\n")
    assert (only(target).alive, only(target).incarnation) == (True, 1)


def test_an_agent_that_leaves_ends_its_process_in_order(
    target: StandbyTarget, fleet: Fleet, board: Board
) -> None:
    fleet.start("trainer", wait_for)
    target.start([spec("sleeper")], fence=1)
    wait_for(lambda: log(target) == "up\n")
    fleet.signal(0, signal.SIGTERM)
    assert fleet.wait(0) == 0
    assert only(target).exit_code == -signal.SIGTERM
    assert board.agents() == {}


def test_a_replacement_kills_who_was_there(
    target: StandbyTarget, fleet: Fleet, board: Board
) -> None:
    for _ in range(2):
        fleet.start("trainer", wait_for)
    target.start([spec("stubborn")], fence=1)
    wait_for(lambda: log(target) == "up\n")
    target.start([spec("sleeper", incarnation=2)], fence=1)
    wait_for(lambda: free(board) == 1)
    assert (only(target).alive, only(target).incarnation) == (True, 2)
    target.start([spec("stubborn")], fence=1)
    assert free(board) == 1, "nobody is started twice"


def test_a_former_leader_neither_starts_nor_stops(
    target: StandbyTarget, fleet: Fleet, board: Board, redis_url: str
) -> None:
    for _ in range(2):
        fleet.start("trainer", wait_for)
    target.start([spec("sleeper")], fence=7)
    former = StandbyTarget(Board(storing.connect(redis_url)))
    with pytest.raises(Conflict, match="token 6 is older than 7"):
        former.stop(JOB, 1, kill=True, fence=6)
    with pytest.raises(Conflict, match="another gateway leads"):
        former.start([spec("sleeper", rank=1)], fence=6)
    assert only(target).alive and free(board) == 1


def test_two_gateways_that_start_the_same_process_start_one(
    target: StandbyTarget, fleet: Fleet, board: Board, redis_url: str
) -> None:
    for _ in range(3):
        fleet.start("trainer", wait_for)
    others = [StandbyTarget(Board(storing.connect(redis_url))) for _ in range(4)]
    threads = [
        threading.Thread(target=other.start, args=([spec("sleeper")], 3)) for other in others
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert free(board) == 2 and only(target).alive


def test_a_gateway_killed_right_after_it_gave_work_is_followed_by_one_that_sees_it(
    target: StandbyTarget, fleet: Fleet, board: Board, redis_url: str
) -> None:
    fleet.start("trainer", wait_for)
    program = (
        "import os\n"
        "from gateway import store\n"
        "from gateway.targets import ProcessSpec\n"
        "from gateway.targets.standby import StandbyTarget\n"
        "from services.kit.discovery import Role\n"
        "from services.kit.standby import Board\n"
        f"target = StandbyTarget(Board(store.connect({redis_url!r})))\n"
        f"target.start([ProcessSpec({JOB!r}, 1, Role.TRAINER, 0, 'sleeper', (), {{}})], 1)\n"
        "os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(ROOT)},
        check=False,
        timeout=30,
    )
    assert killed.returncode == -signal.SIGKILL
    wait_for(lambda: log(target) == "up\n")
    target.start([spec("sleeper")], fence=2)
    assert only(target).alive and free(board) == 0
    target.stop(JOB, 1, kill=False, fence=2)
    wait_for(lambda: free(board) == 1)


def test_an_agent_that_could_not_be_heard_for_a_while_is_not_lost(
    target: StandbyTarget, fleet: Fleet
) -> None:
    fleet.start("trainer", wait_for)
    target.start([spec("sleeper")], fence=1)
    wait_for(lambda: log(target) == "up\n")
    patient = StandbyTarget(target._board, grace=60)
    fleet.signal(0, signal.SIGSTOP)
    wait_for(lambda: not target._board.agents(), timeout=15)  # its lease has ended
    assert only(patient).alive
    fleet.signal(0, signal.SIGCONT)
    wait_for(lambda: bool(target._board.agents()))
    assert only(target).alive, "the same process, still at work"


def test_a_job_waits_for_agents_says_so_and_runs_when_they_come(
    board: Board, fleet: Fleet, redis_url: str, tmp_path: Path
) -> None:
    """A whole gateway: members with leases run in the agents; one trainer's agent dies, is missed,
    and its replacement runs in a new one.
    """
    fleet.start("sparse-ps,dense-ps", wait_for)
    fleet.start("sparse-ps,dense-ps", wait_for)
    settings: dict[str, Any] = {"target": "standby", "silence_seconds": 60.0}
    with running_gateway(redis_url, tmp_path, **settings) as harness:
        resources = {"sparse_ps": 1, "dense_ps": 1, "trainers": 1}
        job = harness.submit(resources=resources)
        wait_for(lambda: "waiting" in harness.events(job))
        view = harness.view(job)
        assert view.state == "starting"
        assert "1 trainer (free: 0 of 0 agents)" in view.error
        fleet.start("trainer", wait_for)
        view = harness.wait(job, "running", timeout=30)
        assert view.error == "" and view.restarts == 0
        fleet.signal(2, signal.SIGKILL)
        wait_for(lambda: harness.events(job)[-1] == "waiting", timeout=40)
        fleet.start("trainer", wait_for)
        wait_for(lambda: harness.view(job).error == "", timeout=20)
        view = harness.view(job)
        assert (view.state, view.generation, view.restarts) == ("running", 1, 1)
        harness.http.post(f"/v1/jobs/{job}:cancel").raise_for_status()
        harness.wait(job, "cancelled", timeout=20)
        wait_for(lambda: free(board) == 3)
