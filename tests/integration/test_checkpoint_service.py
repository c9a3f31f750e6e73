"""The checkpoint service as a process: scheduled and triggered checkpoints, its face, its end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import redis

from services.checkpoint.config import CheckpointServiceConfig
from services.kit import config, rpc
from services.kit.discovery import Registry
from services.kit.errors import Conflict, InvalidInput, NotFound
from services.kit.storage import Storage
from services.wire import checkpoint_pb2, checkpoint_pb2_grpc
from tests.data import ROOT
from tests.fakes.fleet import FakeFleet, make_run, running
from tests.fixtures.ports import find_free_port

JOB = "clicks-ab12cd"


class Service:
    """The process, a stub for it, and its metrics."""

    def __init__(self, redis_url: str, log: Path) -> None:
        self.settings = CheckpointServiceConfig(
            redis_url=redis_url,
            port=find_free_port(),
            metrics_port=find_free_port(),
            scan_seconds=0.05,
            pause_seconds=5,
            hold_seconds=5,
        )
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.checkpoint"],
                cwd=ROOT,
                env=config.inherited() | config.environment(self.settings),
                stderr=stderr,
            )
        self.channel = rpc.connect(f"127.0.0.1:{self.settings.port}")
        self.stub = checkpoint_pb2_grpc.CheckpointStub(self.channel)

    def trigger(self, generation: int = 1) -> checkpoint_pb2.ManifestRef:
        request = checkpoint_pb2.TriggerRequest(job=JOB, generation=generation)
        return rpc.call(self.stub.Trigger, request, peer="checkpoint", timeout=10)

    def list(self, job: str = JOB, to: str = "") -> list[str]:
        request = checkpoint_pb2.ListRequest(job=job, to=to)
        reply = rpc.call(self.stub.List, request, peer="checkpoint", timeout=10)
        return [checkpoint.id for checkpoint in reply.checkpoints]

    def get(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.settings.metrics_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def close(self) -> None:
        self.channel.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


@pytest.fixture
def fleet(redis_db: redis.Redis, tmp_path: Path) -> Iterator[FakeFleet]:
    run = make_run(f"file://{tmp_path}/models", keep=2)
    with running(run, Registry(redis_db), Storage()) as fleet:
        yield fleet


@pytest.fixture
def service(redis_url: str, fleet: FakeFleet, tmp_path: Path) -> Iterator[Service]:
    service = Service(redis_url, tmp_path / "service.log")
    yield service
    service.close()


def test_the_service_from_start_to_end(
    service: Service, fleet: FakeFleet, redis_db: redis.Redis, tmp_path: Path
) -> None:
    first = service.trigger()
    assert first.id == "000001"
    assert first.uri == f"file://{tmp_path}/models/{JOB}/000001/manifest.json"
    assert (first.samples, first.rows, first.bytes) == (2001, 23, 21)

    with pytest.raises(Conflict, match="generation 1, not 9"):
        service.trigger(generation=9)
    with pytest.raises(NotFound, match="job 'nobody' has no run"):
        service.list("nobody")
    with pytest.raises(InvalidInput, match=r"job: '\.\./x' is not a job id"):
        service.list("../x", "file:///tmp")

    # From now on by itself, at most `keep` at a time.
    registry = Registry(redis_db)
    registry.publish_run(
        replace(fleet.run, spec=make_run(f"file://{tmp_path}/models", keep=2, every=0.1).spec)
    )
    wait_for(lambda: service.list()[-1:] >= ["000004"])
    assert len(service.list()) == 2
    assert service.list(to=f"file://{tmp_path}/models")[-1] >= "000004"

    assert service.get("/readyz") == (200, "ready\n")
    metrics = service.get("/metrics")[1]
    assert f'embermesh_checkpoint_bytes{{job="{JOB}"}} 21.0' in metrics
    assert 'embermesh_rpc_total{code="OK",service="Checkpoint",verb="Trigger"} 1.0' in metrics

    registry.publish_run(replace(fleet.run, active=False))
    wait_for(lambda: f'job="{JOB}"' not in service.get("/metrics")[1])
    count = len(fleet.trainers[0].paused)
    time.sleep(0.3)
    assert len(fleet.trainers[0].paused) == count

    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(10) == 0


def test_a_scheduled_failure_is_told_and_tried_again(
    service: Service, fleet: FakeFleet, redis_db: redis.Redis, tmp_path: Path
) -> None:
    fleet.sparse[0].error = Conflict("not configured")
    run = make_run(f"file://{tmp_path}/models", every=0.1)
    registry = Registry(redis_db)
    registry.publish_run(run)

    def failures() -> list[str]:
        return [e["message"] for e in registry.events(JOB) if e["kind"] == "checkpoint-failed"]

    wait_for(lambda: len(failures()) >= 2)
    assert "not configured" in failures()[0]
    fleet.sparse[0].error = None
    wait_for(lambda: bool(service.list()))
    assert service.process.poll() is None


@pytest.mark.parametrize(
    ("setting", "value", "words", "code"),
    [
        ("EMBERMESH_CHECKPOINT_SCAN_SECNODS", "1", "unknown setting", 2),
        ("EMBERMESH_CHECKPOINT_HOLD_SECONDS", "0", "must be above 0", 2),
        ("EMBERMESH_CHECKPOINT_LOG_LEVEL", "loud", "log_level 'loud'", 2),
        ("EMBERMESH_CHECKPOINT_REDIS_URL", "redis://127.0.0.1:1/0", "no Redis at redis://", 1),
    ],
)
def test_a_wrong_setting_ends_it_with_one_clear_line(
    redis_url: str, setting: str, value: str, words: str, code: int
) -> None:
    env = {**config.inherited(), "EMBERMESH_CHECKPOINT_REDIS_URL": redis_url, setting: value}
    done = subprocess.run(
        [sys.executable, "-m", "services.checkpoint"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_named(redis_url: str, service: Service) -> None:
    wait_for(lambda: channel_ready(service.channel))
    taken = replace(service.settings, metrics_port=0)
    done = subprocess.run(
        [sys.executable, "-m", "services.checkpoint"],
        cwd=ROOT,
        env=config.inherited() | config.environment(taken),
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 1
    assert f"can't listen on 127.0.0.1:{taken.port}: the port is in use" in done.stderr


def channel_ready(channel: grpc.Channel) -> bool:
    grpc.channel_ready_future(channel).result(timeout=10)
    return True


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
