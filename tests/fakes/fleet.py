"""A job's processes as the checkpoint service meets them: real gRPC servers, scripted behaviour."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import crc32c
import grpc
import prometheus_client

from services.kit import rpc
from services.kit.discovery import Member, Phase, Registry, Role, Run
from services.kit.errors import Conflict
from services.kit.storage import Storage
from services.wire import ps_pb2, ps_pb2_grpc, trainer_pb2, trainer_pb2_grpc


class FakeTrainer(trainer_pb2_grpc.TrainerServicer):
    """Answers Pause with `stand`, after `gate` is set; Resume with `held`."""

    def __init__(self, stand: trainer_pb2.PauseReply) -> None:
        self.stand = stand
        self.held = True
        self.pause_error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.paused: list[str] = []
        self.resumed: list[str] = []
        self.hold_seconds = 0

    def Pause(
        self, request: trainer_pb2.PauseRequest, context: grpc.ServicerContext
    ) -> trainer_pb2.PauseReply:
        self.paused.append(request.token)
        self.hold_seconds = request.hold_seconds
        if self.pause_error is not None:
            raise self.pause_error
        while not self.gate.wait(0.02) and context.is_active():
            pass
        return self.stand

    def Resume(
        self, request: trainer_pb2.ResumeRequest, context: grpc.ServicerContext
    ) -> trainer_pb2.ResumeReply:
        self.resumed.append(request.token)
        return trainer_pb2.ResumeReply(held=self.held)


@dataclass
class FakeShard:
    """A parameter server: begins a snapshot, then writes `content`, or raises `error`."""

    storage: Storage
    content: bytes
    rows: tuple[int, ...]
    version: int = 0
    error: Exception | None = None
    begin_error: Exception | None = None
    forgetful: bool = False  # does not know what changed
    hidden: bool = False  # claims to have written, in a place of its own
    applied: list[trainer_pb2.Position] = field(default_factory=list)
    before_begin: Callable[[], None] = field(default=lambda: None)
    before: Callable[[], None] = field(default=lambda: None)  # it writes
    callers: list[ps_pb2.Caller] = field(default_factory=list)
    since: list[int | None] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)  # URIs, as are the following
    written: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    def BeginSnapshot(
        self, request: ps_pb2.SnapshotRequest, context: grpc.ServicerContext
    ) -> ps_pb2.BeginSnapshotReply:
        self.callers.append(request.caller)
        self.before_begin()
        if self.begin_error is not None:
            raise self.begin_error
        since = request.since if request.HasField("since") else None
        if since is not None and self.forgetful:
            raise Conflict(f"the changes since snapshot {since} are not known")
        self.since.append(since)
        self.begun.append(request.uri)
        return ps_pb2.BeginSnapshotReply(version=self.version, applied=self.applied)

    def Snapshot(
        self, request: ps_pb2.SnapshotRequest, context: grpc.ServicerContext
    ) -> ps_pb2.SnapshotReply:
        self.callers.append(request.caller)
        assert self.begun[-1:] == [request.uri]
        self.before()
        self.written.append(request.uri)
        if not self.hidden and context.is_active():
            self.storage.put(request.uri, self.content)
        if self.error is not None:  # after half the work
            raise self.error
        return ps_pb2.SnapshotReply(
            uri=request.uri,
            bytes=len(self.content),
            crc32c=crc32c.crc32c(self.content),
            rows=self.rows,
            version=self.version,
        )

    def DropSnapshot(
        self, request: ps_pb2.SnapshotRequest, context: grpc.ServicerContext
    ) -> ps_pb2.DropSnapshotReply:
        self.dropped.append(request.uri)
        return ps_pb2.DropSnapshotReply()


@dataclass
class FakeFleet:
    """Two sparse shards, one or more dense blocks, two trainers; all announced in Redis."""

    run: Run
    trainers: list[FakeTrainer]
    sparse: list[FakeShard]
    dense: list[FakeShard]


def make_run(to: str, *, job: str = "clicks-ab12cd", generation: int = 1, **checkpoint: Any) -> Run:
    """A run of 2 + 1 + 2 processes whose checkpoints go to `to`."""
    spec = {
        "name": "clicks",
        "model": {"name": "lr"},
        "data": {"source": "synthetic://criteo"},
        "features": {"dense": "I1..I2"},
        "resources": {"sparse_ps": 2, "dense_ps": 1, "trainers": 2},
        "checkpoint": {"to": to, **checkpoint},
    }
    return Run(job, generation, spec, epoch=4, owners=[0, 1] * 8)


@contextmanager
def running(run: Run, registry: Registry, storage: Storage) -> Iterator[FakeFleet]:
    """Publishes `run` and serves its processes until the block ends."""
    fleet = FakeFleet(
        run,
        [FakeTrainer(_stand(rank)) for rank in range(2)],
        [FakeShard(storage, f"shard {i}".encode(), (10 + i, 1)) for i in range(2)],
        [FakeShard(storage, b"block 0", (7,), version=40)],
    )
    registry.publish_run(run)
    parts: list[tuple[Role, int, Callable[[grpc.Server], None]]] = [
        *((Role.TRAINER, rank, _trainer(t)) for rank, t in enumerate(fleet.trainers)),
        *((Role.SPARSE_PS, rank, _sparse(shard)) for rank, shard in enumerate(fleet.sparse)),
        *((Role.DENSE_PS, rank, _dense(block)) for rank, block in enumerate(fleet.dense)),
    ]
    with ExitStack() as stack:
        for role, rank, register in parts:
            _serve(stack, registry, run, role, rank, register)
        yield fleet


def _trainer(trainer: FakeTrainer) -> Callable[[grpc.Server], None]:
    return lambda server: trainer_pb2_grpc.add_TrainerServicer_to_server(trainer, server)


def _sparse(shard: FakeShard) -> Callable[[grpc.Server], None]:
    servicer = _only_snapshot(ps_pb2_grpc.SparsePsServicer, shard)
    return lambda server: ps_pb2_grpc.add_SparsePsServicer_to_server(servicer, server)


def _dense(block: FakeShard) -> Callable[[grpc.Server], None]:
    servicer = _only_snapshot(ps_pb2_grpc.DensePsServicer, block)
    return lambda server: ps_pb2_grpc.add_DensePsServicer_to_server(servicer, server)


def _only_snapshot(kind: type, shard: FakeShard) -> Any:
    verbs = ("BeginSnapshot", "Snapshot", "DropSnapshot")
    methods = {v: staticmethod(getattr(shard, v)) for v in verbs}
    return type("OnlySnapshot", (kind,), methods)()


def _serve(
    stack: ExitStack,
    registry: Registry,
    run: Run,
    role: Role,
    rank: int,
    register: Callable[[grpc.Server], None],
) -> None:
    server = rpc.serve(
        register,
        host="127.0.0.1",
        port=0,
        registry=prometheus_client.CollectorRegistry(),
        threads=8,
    )
    stack.callback(server.drain, 0)
    member = Member(run.job, run.generation, role, rank, server.address, phase=Phase.READY)
    registry.announce(member, lease_seconds=60)


def _stand(rank: int) -> trainer_pb2.PauseReply:
    return trainer_pb2.PauseReply(
        step=20,
        samples=1000 + rank,
        positions=[
            trainer_pb2.Position(partition=f"lane-{lane:02d}", major=0, minor=lane + 60)
            for lane in range(rank, 6, 2)
        ],
    )
