"""A gateway dies by SIGKILL in the middle of a scaling or a pause; the next one brings it to its
end.

Real gateways, real processes of target `local` (without TensorFlow) and a real checkpoint call.
"""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import prometheus_client
import pytest
import redis

from embermesh.client import Client
from gateway import store as storing
from gateway.config import GatewayConfig
from gateway.record import JobRecord
from services.api.views import JobState, JobView
from services.kit import config, rpc
from services.kit.discovery import Registry
from services.kit.errors import EmbermeshError
from services.wire import checkpoint_pb2, checkpoint_pb2_grpc
from tests.fixtures.ports import find_free_port
from tests.integration.gateway_harness import (
    OPEN,
    ROOT,
    SPEC,
    FakeCheckpoints,
    fake_target,
    process_exists,
    wait_for,
)


class HeldCheckpoints(FakeCheckpoints):
    """Takes a checkpoint when it is allowed to."""

    def __init__(self, registry: Registry, root: str) -> None:
        super().__init__(registry, root)
        self.asked, self.allowed = threading.Event(), threading.Event()

    def Trigger(
        self, request: checkpoint_pb2.TriggerRequest, context: grpc.ServicerContext
    ) -> checkpoint_pb2.ManifestRef:
        self.asked.set()
        while not self.allowed.wait(0.02) and context.is_active():
            pass
        return super().Trigger(request, context)


@dataclasses.dataclass
class World:
    """What outlives a gateway."""

    redis_url: str
    folder: Path
    checkpoints: HeldCheckpoints
    checkpoint_address: str
    store: storing.JobStore

    @contextmanager
    def gateway(self) -> Iterator[tuple[subprocess.Popen[bytes], Client]]:
        """A gateway process that answers."""
        port = find_free_port()
        settings = GatewayConfig(
            redis_url=self.redis_url,
            port=port,
            checkpoint_address=self.checkpoint_address,
            state_dir=str(self.folder),
            target=f"{fake_target.__module__}:member_target",
            tick_seconds=0.05,
            lease_seconds=1.0,
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway"],
            env={**config.inherited(), **config.environment(settings), **config.environment(OPEN)},
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
        )
        try:
            with Client(f"http://127.0.0.1:{port}") as client:
                wait_for(client.ready, timeout=60)
                yield process, client
        finally:
            process.kill()
            process.wait(10)

    def alive(self, job: str) -> list[str]:
        """GENERATION/ROLE-RANK of every process of the job that is there."""
        found = (self.folder / "jobs" / job).glob("*/*.pid")
        texts = {f"{path.parent.name}/{path.stem}": path.read_text() for path in found}
        # An empty file is of a process that is about to write it.
        pids = {name: int(text.split(" ", 1)[0]) for name, text in texts.items() if text}
        return sorted(name for name, pid in pids.items() if process_exists(pid))


@pytest.fixture
def world(redis_db: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[World]:
    client = storing.connect(redis_url)
    checkpoints = HeldCheckpoints(Registry(client), f"file://{tmp_path}/checkpoints")
    server = rpc.serve(
        lambda s: checkpoint_pb2_grpc.add_CheckpointServicer_to_server(checkpoints, s),
        host="127.0.0.1",
        port=0,
        registry=prometheus_client.CollectorRegistry(),
    )
    yield World(redis_url, tmp_path, checkpoints, server.address, storing.JobStore(client))
    checkpoints.allowed.set()
    server.drain(1)


def asked(record: JobRecord, world: World) -> bool:
    return record.scale_to == 3


def checkpointing(record: JobRecord, world: World) -> bool:
    return world.checkpoints.asked.is_set()


def stopping(record: JobRecord, world: World) -> bool:
    return record.state == JobState.STOPPING


def starting(record: JobRecord, world: World) -> bool:
    return record.generation == 2 and record.state == JobState.STARTING


def half_started(record: JobRecord, world: World) -> bool:
    return any(name.startswith("2/") for name in world.alive(record.id))


LONG = [pytest.mark.e2e, pytest.mark.slow]  # the other two stand for them in everyday runs


@pytest.mark.parametrize(
    "moment",
    [
        checkpointing,
        half_started,
        pytest.param(asked, marks=LONG),
        pytest.param(stopping, marks=LONG),
        pytest.param(starting, marks=LONG),
    ],
)
def test_a_gateway_killed_mid_scale(
    world: World, moment: Callable[[JobRecord, World], bool]
) -> None:
    resources = {"sparse_ps": 1, "dense_ps": 1, "trainers": 1}
    checkpoint = {"to": f"file://{world.folder}/checkpoints"}
    with world.gateway() as (process, client):
        job = client.submit({**SPEC, "resources": resources, "checkpoint": checkpoint}).id
        wait_for(lambda: at_work(client, job, 1), timeout=60)
        client.scale(job, trainers=3)
        if moment not in (asked, checkpointing):
            world.checkpoints.allowed.set()
        wait_for(lambda: moment(world.store.get(job), world), timeout=30)
        process.send_signal(signal.SIGKILL)
        process.wait()
    world.checkpoints.allowed.set()
    with world.gateway() as (_, client):
        wait_for(
            lambda: at_work(client, job, 2),
            lambda: f"{client.get(job)}, alive: {world.alive(job)}",
            timeout=60,
        )
        view = client.get(job)
        assert (view.restarts, view.spec["resources"]["trainers"]) == (0, 3)
        expected = ["2/dense-ps-0", "2/sparse-ps-0", *(f"2/trainer-{rank}" for rank in range(3))]
        assert world.alive(job) == expected, "each process once, and none of before"
        assert world.store.get(job).restore.startswith(checkpoint["to"])
        client.cancel(job)
        wait_for(lambda: client.get(job).state == JobState.CANCELLED, timeout=30)
        assert world.alive(job) == []


@pytest.mark.parametrize("moment", [checkpointing, pytest.param(stopping, marks=LONG)])
def test_a_gateway_killed_mid_pause(
    world: World, moment: Callable[[JobRecord, World], bool]
) -> None:
    resources = {"sparse_ps": 1, "dense_ps": 1, "trainers": 1}
    checkpoint = {"to": f"file://{world.folder}/checkpoints"}
    with world.gateway() as (process, client):
        job = client.submit({**SPEC, "resources": resources, "checkpoint": checkpoint}).id
        wait_for(lambda: at_work(client, job, 1), timeout=60)
        client.pause(job)
        if moment is stopping:
            world.checkpoints.allowed.set()
        wait_for(lambda: moment(world.store.get(job), world), timeout=30)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert world.store.get(job).state != JobState.PAUSED
    world.checkpoints.allowed.set()
    with world.gateway() as (_, client):
        view = client.wait_paused(job, 60)
        assert (view.state, view.generation, view.restarts) == (JobState.PAUSED, 1, 0)
        assert world.alive(job) == []
        restore = world.store.get(job).restore
        assert restore.startswith(checkpoint["to"])
        client.resume(job)
        wait_for(lambda: at_work(client, job, 2), timeout=60)
        assert len(world.alive(job)) == 3 and world.store.get(job).restore == restore
        client.cancel(job)
        wait_for(lambda: client.get(job).state == JobState.CANCELLED, timeout=30)


def at_work(client: Client, job: str, generation: int) -> bool:
    """Whether all processes of that generation are ready."""
    try:
        view: JobView = client.get(job)
    except EmbermeshError:
        return False
    wanted = 2 + view.spec["resources"]["trainers"]
    there = (view.state, view.generation) == (JobState.RUNNING, generation)
    return there and len(view.members) == wanted
