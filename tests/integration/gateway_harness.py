"""A gateway in the test's process with a real Redis, real HTTP, a real gRPC checkpoint service, and
processes that exist only in a `FakeTarget`, where a test makes them fail, finish and report as it
likes.
"""

from __future__ import annotations

import dataclasses
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import httpx
import prometheus_client
import uvicorn

from gateway import store as storing
from gateway.__main__ import assemble
from gateway.access_config import OPEN_LOOPBACK, AccessConfig
from gateway.app import create_app
from gateway.config import GatewayConfig
from gateway.deps import Gateway
from gateway.loop import Reconciler
from gateway.targets import Process, ProcessSpec
from gateway.targets.local import LocalTarget
from services.api import manifest
from services.api.views import JobView, Problem
from services.kit import config, rpc
from services.kit.discovery import Checkpoint, Member, Phase, Registry, Role
from services.kit.errors import Conflict, NotFound
from services.kit.storage import Storage, join
from services.wire import checkpoint_pb2, checkpoint_pb2_grpc

ROOT = Path(__file__).resolve().parents[2]
SPEC: dict[str, Any] = {
    "name": "clicks",
    "model": {"name": "lr"},
    "data": {"source": "synthetic://criteo?rows=1000"},
    "features": {"sparse": {"C1..C3": {"dim": 4}}},
    "resources": {"sparse_ps": 2, "dense_ps": 1, "trainers": 2},
}


OPEN = AccessConfig(mode=OPEN_LOOPBACK)


class FakeTarget:
    """Processes as entries of a table; each one holds a member's lease, as a real process would."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._fences: dict[str, int] = {}
        self.table: dict[tuple[str, int, Role, int], Process] = {}
        self.started: list[ProcessSpec] = []
        self.obeys = True  # whether a process ends when asked

    def observe(self, job: str, generation: int) -> list[Process]:
        with self._lock:
            return [p for (j, g, _, _), p in self.table.items() if (j, g) == (job, generation)]

    def start(self, processes: Sequence[ProcessSpec], fence: int) -> None:
        self._check(processes[0].job, fence)
        for spec in processes:
            key = (spec.job, spec.generation, spec.role, spec.rank)
            with self._lock:
                if key in self.table and self.table[key].incarnation >= spec.incarnation:
                    continue
                process = Process(spec.role, spec.rank, True, incarnation=spec.incarnation)
                self.table[key] = process
                self.started.append(spec)
            self.report(*key, incarnation=spec.incarnation)

    def stop(self, job: str, generation: int, *, kill: bool, fence: int) -> None:
        self._check(job, fence)
        for process in self.observe(job, generation):
            if process.alive and (kill or self.obeys):
                code = -9 if kill else 0
                self.end(job, generation, process.role, process.rank, code)
                self._registry.withdraw(Member(job, generation, process.role, process.rank))

    def logs(self, job: str, generation: int, role: Role, rank: int, tail: int) -> str:
        if (job, generation, role, rank) not in self.table:
            raise NotFound(f"{role} {rank} has no log")
        return f"{tail} lines of {role} {rank}, generation {generation}\n"

    def report(
        self,
        job: str,
        generation: int,
        role: Role,
        rank: int,
        phase: Phase = Phase.READY,
        **fields: Any,
    ) -> None:
        """Writes the lease of a process."""
        metrics = f"127.0.0.1:{9000 + rank}"
        member = Member(job, generation, role, rank, "", metrics, phase=phase, **fields)
        self._registry.announce(member, lease_seconds=60)

    def end(self, job: str, generation: int, role: Role, rank: int, code: int) -> None:
        """Ends a process without a last word."""
        with self._lock:
            key = (job, generation, role, rank)
            incarnation = self.table[key].incarnation
            self.table[key] = Process(role, rank, False, code, "the last line\n", incarnation)

    def _check(self, job: str, fence: int) -> None:
        with self._lock:
            if fence < self._fences.get(job, 0):
                raise Conflict("an older token")
            self._fences[job] = fence


class FakeCheckpoints(checkpoint_pb2_grpc.CheckpointServicer):
    """Writes manifests without files; `refusals` are raised first, one a call."""

    def __init__(self, registry: Registry, root: str) -> None:
        self._registry, self._root, self._storage = registry, root, Storage()
        self._taken: list[checkpoint_pb2.ManifestRef] = []
        self.refusals: list[Exception] = []

    def Trigger(
        self, request: checkpoint_pb2.TriggerRequest, context: grpc.ServicerContext
    ) -> checkpoint_pb2.ManifestRef:
        if self.refusals:
            raise self.refusals.pop(0)
        run = self._registry.run(request.job)
        assert run.active and run.generation == request.generation
        name = f"{len(self._taken) + 1:06d}"
        body = manifest.Manifest(
            job=request.job,
            id=name,
            generation=run.generation,
            step=10,
            samples=2560,
            created=time.time(),
            partitions=len(run.owners),
            spec=run.spec,
            sparse=(),
            dense=(),
            positions=(),
        )
        uri = manifest.write(self._storage, join(self._root, request.job, name), body)
        ref = checkpoint_pb2.ManifestRef(id=name, uri=uri, created=body.created, samples=2560)
        self._taken.append(ref)
        newest = Checkpoint(name, uri, body.created, samples=2560, rows=0, bytes=0)
        self._registry.publish_checkpoint(request.job, newest)
        return ref

    def List(
        self, request: checkpoint_pb2.ListRequest, context: grpc.ServicerContext
    ) -> checkpoint_pb2.ListReply:
        assert request.to == self._root
        return checkpoint_pb2.ListReply(checkpoints=self._taken)


@dataclasses.dataclass
class Harness:
    """What a test needs of a running gateway."""

    http: httpx.Client
    gateway: Gateway
    reconciler: Reconciler
    target: FakeTarget
    checkpoints: FakeCheckpoints
    spec: dict[str, Any]

    def submit(self, **changes: Any) -> str:
        """Submits the spec; returns the job's id."""
        answer = self.http.post("/v1/jobs", json={**self.spec, **changes})
        assert answer.status_code == 201, answer.text
        return JobView.model_validate(answer.json()).id

    def view(self, job: str) -> JobView:
        return JobView.model_validate(self.http.get(f"/v1/jobs/{job}").raise_for_status().json())

    def wait(
        self, job: str, state: str, generation: int | None = None, timeout: float = 10.0
    ) -> JobView:
        """The job once it is in that state (of that generation)."""

        def there() -> bool:
            view = self.view(job)
            return view.state == state and generation in (None, view.generation)

        wait_for(there, lambda: f"{job} is not {state}: {self.view(job)}", timeout)
        return self.view(job)

    def finish(self, job: str, generation: int, trainers: int = 2) -> None:
        """Lets all trainers end their data."""
        for rank in range(trainers):
            status: dict[str, Any] = {"samples": 500, "samples_per_second": 100.0, "auc": 0.7}
            if rank == 0:
                status["result"] = {"auc": 0.75, "logloss": 0.4, "samples": 200}
            self.target.report(job, generation, Role.TRAINER, rank, Phase.DONE, status=status)

    def events(self, job: str) -> list[str]:
        return [e["kind"] for e in self.http.get(f"/v1/jobs/{job}/events").json()["events"]]


def wait_for(
    condition: Callable[[], object], complaint: Callable[[], str] = str, timeout: float = 10.0
) -> None:
    """Returns when `condition()` is true; fails with `complaint()` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, complaint()
        time.sleep(0.02)


def problem(answer: httpx.Response, status: int) -> Problem:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found = Problem.model_validate(answer.json())
    assert found.status == status
    return found


def process_exists(pid: int) -> bool:
    """Whether the process is there and no zombie that waits for its parent."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def fake_target(settings: GatewayConfig) -> FakeTarget:
    """`create` of a target, for EMBERMESH_GATEWAY_TARGET."""
    return FakeTarget(Registry(storing.connect(settings.redis_url)))


def member_target(settings: GatewayConfig) -> LocalTarget:
    """The local target whose processes are `gateway_member.py`, whatever module is asked for."""
    folder = Path(settings.state_dir)
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "python"
    script = Path(__file__).with_name("gateway_member.py")
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    program.chmod(0o755)
    return LocalTarget(folder, {**config.inherited(), "PYTHONPATH": str(ROOT)}, str(program))


@contextmanager
def running_gateway(
    redis_url: str, folder: Path, access: AccessConfig = OPEN, listen: int = 0, **settings: Any
) -> Iterator[Harness]:
    """A gateway with fake processes unless `target` says otherwise; ends with the block. `listen`:
    its port, 0 for a free one.
    """
    registry = Registry(storing.connect(redis_url))
    root = f"file://{folder}/checkpoints"
    checkpoints = FakeCheckpoints(registry, root)
    grpc_server = rpc.serve(
        lambda server: checkpoint_pb2_grpc.add_CheckpointServicer_to_server(checkpoints, server),
        host="127.0.0.1",
        port=0,
        registry=prometheus_client.CollectorRegistry(),
    )
    chosen = GatewayConfig(
        **{
            "redis_url": redis_url,
            "checkpoint_address": grpc_server.address,
            "target": f"{__name__}:fake_target",
            "state_dir": str(folder),
            "tick_seconds": 0.05,
            **settings,
        }
    )
    gateway, reconciler = assemble(chosen, prometheus_client.CollectorRegistry(), access)
    target = cast(FakeTarget, gateway.target)  # a test that names another one has no table of it
    listener = socket.create_server(("127.0.0.1", listen))
    server = uvicorn.Server(uvicorn.Config(create_app(gateway), log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    reconciler.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    spec = {**SPEC, "checkpoint": {"to": root}}
    try:
        with httpx.Client(base_url=url, timeout=20, trust_env=False) as http:
            yield Harness(http, gateway, reconciler, target, checkpoints, spec)
    finally:
        gateway.closing.set()
        server.should_exit = True
        thread.join()
        reconciler.close()
        gateway.checkpoints.close()
        gateway.audit.close()
        grpc_server.drain(0)
