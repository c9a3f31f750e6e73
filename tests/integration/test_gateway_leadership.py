"""Who may act: two gateways on one Redis, a leader that slept, a Redis that is away, a gateway
that is killed.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import prometheus_client
import pytest
import redis
import yaml

from embermesh import redis_program
from gateway import store as storing
from gateway.__main__ import assemble
from gateway.config import GatewayConfig
from gateway.loop import LeaseWatch, Reconciler
from gateway.record import new_record
from services.api import spec as jobspec
from services.api.views import JobState
from services.kit import config
from services.kit.discovery import Member, Registry, Role
from services.kit.errors import Conflict, InvalidInput, Unavailable
from tests.fixtures.ports import find_free_port
from tests.fixtures.process import ServerProcess
from tests.integration.gateway_harness import (
    OPEN,
    ROOT,
    SPEC,
    FakeTarget,
    fake_target,
    process_exists,
    running_gateway,
    wait_for,
)


@contextmanager
def reconcilers(redis_url: str, owners: list[str], lease: float) -> Iterator[list[Reconciler]]:
    """Reconcilers over one FakeTarget that run only when the test calls `tick`."""
    settings = GatewayConfig(redis_url=redis_url, target=f"{fake_target.__module__}:fake_target")
    made, parts = [], []
    shared: FakeTarget | None = None
    for owner in owners:
        gateway, reconciler = assemble(settings, prometheus_client.CollectorRegistry(), OPEN)
        assert isinstance(gateway.target, FakeTarget)
        shared = shared or gateway.target
        tools = dataclasses.replace(reconciler._tools, target=shared)
        made.append(Reconciler(tools, owner, 0.05, lease))
        parts.append(gateway)
    try:
        yield made
    finally:
        for reconciler, gateway in zip(made, parts, strict=True):
            reconciler.close()
            gateway.checkpoints.close()


def submit(redis_url: str) -> str:
    store = storing.JobStore(storing.connect(redis_url))
    return store.save(new_record(jobspec.validate(SPEC), 1.0)).id


def test_only_the_leader_acts_and_a_closed_one_hands_over(
    redis_db: redis.Redis, redis_url: str
) -> None:
    job = submit(redis_url)
    store = storing.JobStore(storing.connect(redis_url))
    with reconcilers(redis_url, ["one", "two"], lease=30) as (one, two):
        assert one.tick()
        for _ in range(3):
            assert not two.tick()
        assert (one.leads, two.leads) == (True, False)
        assert store.get(job).state == JobState.STARTING
        one.close()
        two.tick()
        assert two.leads
        wait_for(lambda: two.tick() or store.get(job).state == JobState.RUNNING)
        assert len(one._tools.target.observe(job, 1)) == 5


def test_a_leader_that_slept_through_its_lease_changes_nothing(
    redis_db: redis.Redis, redis_url: str
) -> None:
    job = submit(redis_url)
    store = storing.JobStore(storing.connect(redis_url))
    with reconcilers(redis_url, ["one", "two"], lease=0.2) as (one, two):
        one.tick()
        slept = one._lease
        assert slept is not None
        wait_for(lambda: two.tick() or two.leads)
        wait_for(lambda: two.tick() or store.get(job).state == JobState.RUNNING)
        before = store.get(job)
        # It wakes up in the middle of its work, sure that it still leads.
        with pytest.raises(Conflict, match="not the leader any more"):
            store.save(dataclasses.replace(before, state=JobState.STOPPING), slept)
        with pytest.raises(Conflict, match="older token"):
            one._tools.target.stop(job, 1, kill=True, fence=slept.token)
        assert not one.tick() and not one.leads
        assert store.get(job) == before


def test_one_job_that_can_not_be_handled_does_not_stop_the_others(
    redis_db: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = sorted(submit(redis_url) for _ in range(2))
    store = storing.JobStore(storing.connect(redis_url))
    with reconcilers(redis_url, ["one"], lease=30) as (one,):
        target = one._tools.target
        start = target.start

        def picky(processes: Any, fence: int) -> None:
            if processes[0].job == jobs[0]:
                raise OSError("no more processes")
            start(processes, fence)

        monkeypatch.setattr(target, "start", picky)
        for _ in range(4):
            one.tick()
        assert [store.get(j).state for j in jobs] == [JobState.STARTING, JobState.RUNNING]
        assert one._trouble[jobs[0]] == "OSError: no more processes"
        monkeypatch.setattr(target, "start", start)
        wait_for(lambda: one.tick() or store.get(jobs[0]).state == JobState.RUNNING)


def test_silence_counts_only_while_somebody_watches() -> None:
    watch = LeaseWatch()
    both = [Member("a", 1, Role.TRAINER, rank) for rank in (0, 1)]
    assert watch.update("a", 1, both, 10.0) == {}
    assert watch.update("a", 1, both[:1], 15.0) == {(Role.TRAINER, 1): 5.0}
    watch.reset()
    assert watch.update("a", 1, [], 90.0) == {}
    assert watch.update("a", 1, both, 91.0) == {}
    assert watch.update("a", 2, [], 95.0) == {}  # another generation, other processes


def test_a_replaced_trainer_is_not_missed() -> None:
    watch = LeaseWatch()
    both = [Member("a", 1, Role.TRAINER, rank) for rank in (0, 1)]
    assert watch.update("a", 1, both, 10.0) == {}
    assert watch.update("a", 1, [], 15.0, [0, 1]) == {(Role.TRAINER, 0): 5.0}
    successor = dataclasses.replace(both[1], incarnation=1)
    assert watch.update("a", 1, [both[0], successor], 40.0, [0, 1]) == {}
    assert watch.update("a", 1, both[:1], 47.0, [0, 1]) == {(Role.TRAINER, 1): 7.0}


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[tuple[str, ServerProcess]]:
    """A Redis that a test may stop and start; its data stay on disk."""
    port = find_free_port()
    url = f"redis://127.0.0.1:{port}/0"

    def answers() -> bool:
        try:
            storing.JobStore(storing.connect(url)).ping()
        except Unavailable:
            return False
        return True

    server = ServerProcess(
        redis_program.command(port, tmp_path),
        log=tmp_path / "redis.log",
        ready=answers,
        deadline=20,
    )
    server.start()
    yield url, server
    server.stop()


def test_without_redis_the_api_says_so_and_the_job_goes_on_when_it_is_back(
    own_redis: tuple[str, ServerProcess], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, server = own_redis
    with running_gateway(url, tmp_path) as harness:
        job = harness.submit()
        harness.wait(job, "running")
        server.stop()
        with caplog.at_level(logging.WARNING):
            for path in ("/v1/jobs", f"/v1/jobs/{job}", "/readyz", "/v1/services/prometheus"):
                answer = harness.http.get(path)
                assert answer.status_code == 503
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.json()["detail"].startswith("Redis: could not ")
            assert harness.http.post("/v1/jobs", json=SPEC).status_code == 503
            assert harness.http.get("/healthz").status_code == 200
            assert "embermesh_jobs{" not in harness.http.get("/metrics").text
            wait_for(lambda: "trying again in" in caplog.text)
        server.start()
        view = harness.wait(job, "running")
        assert (view.generation, view.restarts) == (1, 0)
        harness.finish(job, 1)
        harness.wait(job, "succeeded")


# ---- the real process


@contextmanager
def gateway_process(redis_url: str, folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    settings = GatewayConfig(
        redis_url=redis_url,
        port=port,
        state_dir=str(folder),
        target=f"{fake_target.__module__}:member_target",
        tick_seconds=0.05,
        lease_seconds=1.0,
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway"],
        env={**config.inherited(), **config.environment(settings), **config.environment(OPEN)},
        cwd=ROOT,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def view(port: int, path: str) -> Any:
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}{path}", timeout=10, trust_env=False)
    except httpx.TransportError:
        return None
    return answer.json() if answer.is_success and "json" in answer.headers["content-type"] else None


def test_a_killed_gateway_leaves_the_job_running_and_the_next_one_takes_it_up(
    redis_db: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    first, second = find_free_port(), find_free_port()
    pids = tmp_path / "jobs"

    def running(port: int, job: str) -> bool:
        found = view(port, f"/v1/jobs/{job}")
        return found is not None and found["state"] == "running" and len(found["members"]) == 4

    with gateway_process(redis_url, tmp_path, first) as gateway:
        wait_for(lambda: view(first, "/v1/jobs") == {"jobs": [], "next": None}, timeout=30)
        resources = {"sparse_ps": 2, "dense_ps": 1, "trainers": 1}
        text = yaml.safe_dump({**SPEC, "resources": resources})
        job = httpx.post(
            f"http://127.0.0.1:{first}/v1/jobs", content=text, timeout=10, trust_env=False
        ).json()["id"]
        wait_for(lambda: running(first, job), timeout=60)
        before = {p.name: p.read_text() for p in (pids / job / "1").glob("*.pid")}
        gateway.send_signal(signal.SIGKILL)
        gateway.wait()
    members = Registry(storing.connect(redis_url)).members(job, 1)
    assert len(members) == 4
    with gateway_process(redis_url, tmp_path, second) as gateway:
        wait_for(lambda: running(second, job), timeout=30)
        found = view(second, f"/v1/jobs/{job}")
        assert (found["generation"], found["restarts"]) == (1, 0)
        assert found["progress"]["samples"] == 7
        assert before == {p.name: p.read_text() for p in (pids / job / "1").glob("*.pid")}
        httpx.post(f"http://127.0.0.1:{second}/v1/jobs/{job}:cancel", trust_env=False)
        wait_for(lambda: view(second, f"/v1/jobs/{job}")["state"] == "cancelled", timeout=30)
        assert not any(process_exists(int(text.split()[0])) for text in before.values())
        gateway.terminate()
        _, log = gateway.communicate(timeout=30)
        assert gateway.returncode == 0, log.decode()
        assert all(json.loads(line)["level"] != "error" for line in log.decode().splitlines())


def test_a_port_in_use_is_named(redis_url: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with gateway_process(redis_url, tmp_path, port) as gateway:
            _, log = gateway.communicate(timeout=30)
    assert gateway.returncode == 1
    assert f"can't listen on 127.0.0.1:{port}: Address already in use" in log.decode()


def test_an_unknown_target_is_refused(redis_url: str) -> None:
    settings = GatewayConfig(redis_url=redis_url, target="moon")
    with pytest.raises(InvalidInput, match=r"unknown target 'moon'; known: .*\blocal"):
        assemble(settings, prometheus_client.CollectorRegistry(), OPEN)
