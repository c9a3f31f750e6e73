"""`python -m trainer_service` as a real process, with real parameter servers and Redis."""

from __future__ import annotations

import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ps_service.sharding import ShardMap
from services.api.spec import validate
from services.kit import config, rpc
from services.kit.discovery import Member, Phase, Registry, Role, Run
from services.kit.member import MemberConfig
from services.wire import trainer_pb2, trainer_pb2_grpc

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {
    Role.SPARSE_PS: ["ps_service", "sparse"],
    Role.DENSE_PS: ["ps_service", "dense"],
    Role.TRAINER: ["trainer_service"],
}
GENERATION, WAIT = 2, 60.0


class JobProcesses:
    """One process of each role of a small job."""

    def __init__(self, registry: Registry, redis_url: str, log: Path) -> None:
        self._registry, self._redis_url, self._log = registry, redis_url, log
        self.processes: dict[Role, subprocess.Popen[bytes]] = {}

    def start(
        self,
        source: str,
        *,
        model: str = "deepfm",
        hidden: int = 8,
        dim: int = 4,
        roles: tuple[Role, ...] = (),
        **training: Any,
    ) -> None:
        spec = {
            "name": "proc",
            "model": {"name": model, "hidden": [hidden]},
            "data": {"source": source},
            "features": {"dense": "I1..I13", "sparse": {"C1..C6": {"dim": dim}}},
            "training": {"batch_size": 128, **training},
        }
        document = validate(spec).model_dump(mode="json")
        owners = ShardMap.even(64, 1).owners.tolist()
        self._registry.publish_run(Run("proc-1", GENERATION, document, epoch=1, owners=owners))
        settings = MemberConfig("proc-1", GENERATION, 0, self._redis_url)
        env = {**config.inherited(), **config.environment(settings), "TF_CPP_MIN_LOG_LEVEL": "2"}
        for role in roles or tuple(COMMANDS):
            with self._log.open("ab") as log:
                self.processes[role] = subprocess.Popen(
                    [sys.executable, "-m", *COMMANDS[role]], env=env, cwd=ROOT, stderr=log
                )

    def trainer(self, condition: Callable[[Member], bool]) -> Member:
        """The trainer's lease once `condition` holds."""
        pause = threading.Event()
        for _ in range(int(WAIT / 0.1)):
            for member in self._registry.members("proc-1", GENERATION):
                if member.role == Role.TRAINER and condition(member):
                    return member
            pause.wait(0.1)
        raise AssertionError(f"condition did not come true; log:\n{self._log.read_text()[-3000:]}")

    def terminate(self, role: Role) -> int:
        self.processes[role].terminate()
        return self.processes[role].wait(20)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(10)


@pytest.fixture
def job(redis_db: Any, redis_url: str, tmp_path: Path) -> Iterator[JobProcesses]:
    processes = JobProcesses(Registry(redis_db), redis_url, tmp_path / "log")
    yield processes
    processes.close()


def control(address: str, verb: str, request: Any) -> Any:
    with rpc.connect(address) as channel:
        method = getattr(trainer_pb2_grpc.TrainerStub(channel), verb)
        return rpc.call(method, request, peer="trainer", timeout=20)


def pause(member: Member, token: str) -> trainer_pb2.PauseReply:
    request = trainer_pb2.PauseRequest(generation=GENERATION, token=token, hold_seconds=20)
    reply: trainer_pb2.PauseReply = control(member.address, "Pause", request)
    return reply


def resume(member: Member, token: str) -> bool:
    request = trainer_pb2.ResumeRequest(generation=GENERATION, token=token)
    return bool(control(member.address, "Resume", request).held)


def test_a_job_from_its_first_step_to_its_result(job: JobProcesses) -> None:
    job.start("synthetic://criteo?rows=3000&holdout=1000")
    done = job.trainer(lambda m: m.phase in (Phase.DONE, Phase.FAILED))
    assert (done.phase, done.error) == (Phase.DONE, "")
    assert (done.status["samples"], done.status["total_samples"]) == (3_000, 3_000)
    assert done.status["step"] == 24
    result = done.status["result"]
    assert result["samples"] == 1_000
    assert 0.3 < result["auc"] < result["bayes_auc"] < 0.95
    url = f"http://{done.metrics_address}/metrics"
    page = urllib.request.urlopen(url, timeout=5).read().decode()
    assert "embermesh_trainer_samples_total 3000.0" in page
    assert 'embermesh_trainer_phase_seconds_count{phase="push"} 24.0' in page
    reply = pause(done, "final")
    assert (reply.step, reply.samples, len(reply.positions)) == (24, 3_000, 60)
    assert resume(done, "final")
    assert [job.terminate(role) for role in COMMANDS] == [0, 0, 0]


@pytest.mark.parametrize(("project", "steps"), [("auto", 24), ("off", 0)])
def test_the_spec_says_whether_the_first_layer_is_computed_by_distinct_rows(
    job: JobProcesses, project: str, steps: int
) -> None:
    source = "synthetic://criteo?rows=3000&holdout=1000"
    job.start(source, model="dnn", hidden=64, dim=16, project=project)
    done = job.trainer(lambda m: m.phase in (Phase.DONE, Phase.FAILED))
    assert (done.phase, done.error) == (Phase.DONE, "")
    assert (done.status["step"], done.status["result"]["samples"]) == (24, 1_000)
    page = urllib.request.urlopen(f"http://{done.metrics_address}/metrics", timeout=5)
    assert f"embermesh_trainer_projected_steps_total {steps}.0" in page.read().decode()


def test_pause_in_the_middle_and_a_clean_end_on_sigterm(job: JobProcesses) -> None:
    job.start("synthetic://criteo?rows=100000000")
    running = job.trainer(lambda m: m.status.get("step", 0) > 0)
    assert running.phase == Phase.READY
    reply = pause(running, "t1")
    assert reply.samples == 128 * reply.step
    assert sum(p.minor // 60 for p in reply.positions) == reply.step
    assert resume(running, "t1")
    assert not resume(running, "t2")
    job.trainer(lambda m: m.status["step"] > reply.step)
    assert job.terminate(Role.TRAINER) == 0
    assert [job.terminate(role) for role in (Role.SPARSE_PS, Role.DENSE_PS)] == [0, 0]


def test_an_unknown_model_fails_for_good_and_says_so(job: JobProcesses) -> None:
    job.start("synthetic://criteo", model="deepfn", roles=(Role.TRAINER,))
    failed = job.trainer(lambda m: m.phase == Phase.FAILED)
    assert failed.permanent
    assert "unknown model 'deepfn'" in failed.error
    assert job.processes[Role.TRAINER].wait(20) == 2
