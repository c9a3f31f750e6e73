"""`python -m trainer_service`: one trainer of a job. Wiring only: everything a part needs is handed
to it here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from ps_service.client.dense import DenseClient, DenseSide
from ps_service.client.kstep import KStepClient
from ps_service.client.plan import KeyPlanner
from ps_service.client.sparse import SparseClient
from ps_service.embedded import Embedded, EmbeddedBlock, EmbeddedShard
from ps_service.sharding import ShardMap, embedded_blocks
from ps_service.tables import dense_optimizer
from services.api import manifest as manifests
from services.api.manifest import Manifest
from services.api.spec import JobSpec, validate
from services.kit import member, memory, rpc
from services.kit.discovery import Phase, Role, Run
from services.kit.errors import EmbermeshError
from services.kit.member import MemberProcess
from services.kit.rpc_answer import joined
from services.kit.rpc_metrics import ClientMetrics
from services.kit.storage import Storage
from services.wire import trainer_pb2_grpc
from trainer_service import holdout
from trainer_service.control import PauseGate, TrainerServicer
from trainer_service.layout import Layout, build_layout, load_model
from trainer_service.loop import Loop
from trainer_service.metrics import TrainerMetrics
from trainer_service.micro_batches import configure_threads
from trainer_service.pipeline import ReadAhead, Servers, Stopped
from trainer_service.positions import Positions, from_manifest
from trainer_service.progress import Progress
from trainer_service.rows_ahead import RowsAhead
from trainer_service.sources import open_holdout, open_training
from trainer_service.step import TrainStep, build_network
from trainer_service.step_spans import StepSpans
from trainer_service.takeover import Takeover

log = logging.getLogger(__name__)

MEMBERS_SECONDS = 120.0  # parameter servers must be up within this time
STEP_SECONDS = 5.0  # after SIGTERM, a step under way may end within this time
DRAIN_SECONDS = 2.0
CONTROL_THREADS = 4
LEAVING_SECONDS = 0.2  # between looks at whether all trainers have taken their last step
LOW_BATCHES = 2  # with fewer batches planned, the next is read without regard to the step
IDLE_SECONDS = 0.05  # a live stream silent for this long lets the other trainers' barriers pass


@dataclass(frozen=True)
class _Job:
    """What the run's documents say, made ready to train."""

    run: Run
    spec: JobSpec
    restored: Manifest | None
    layout: Layout
    planner: KeyPlanner
    step: TrainStep


@dataclass(frozen=True)
class _Own:
    """Parameter servers in this process."""

    shard: EmbeddedShard | None
    block: EmbeddedBlock | None

    @property
    def servers(self) -> list[Embedded]:
        """Those that are there."""
        both: list[Embedded | None] = [self.shard, self.block]
        return [server for server in both if server is not None]


def train(process: MemberProcess, stop: threading.Event) -> None:
    """The life of a trainer: configure, take steps, evaluate (rank 0), then answer Pause until
    `stop`.
    """
    gate, cut = PauseGate(), threading.Event()
    try:
        with _winding_down(stop, gate, cut), ExitStack() as stack:
            spec = validate(process.run.spec)
            own = _embedded(process, spec)  # first: its memory is to stand by when steps begin
            job = _prepare(process.run, spec, process.settings.plan_threads)
            stack.callback(_serve(process, gate, own.servers).drain, DRAIN_SECONDS)
            for server in own.servers:
                stack.callback(server.close)  # before the gRPC server drains
            sparse, dense = _connect(process, job, own, stop, cut)
            servers = stack.enter_context(closing(Servers(sparse, dense)))
            metrics = TrainerMetrics(process.metrics)
            metrics.xla.set(job.step.xla)
            _configure(job, sparse, dense)
            takeover = Takeover(sparse, dense)
            progress = _take_steps(process, job, servers, takeover, gate, metrics, stop)
            if process.settings.rank == 0:
                _evaluate(job, servers, dense, progress, metrics, stop)
            process.announce(Phase.DONE)
            stop.wait()
    except Stopped:
        log.info("stopped")
    except EmbermeshError as error:
        if not stop.is_set():
            raise
        log.info("stopped while: %s", error)


def _prepare(run: Run, spec: JobSpec, plan_threads: int) -> _Job:
    """Everything that needs no other process; the network is built while the servers come up.
    `plan_threads` as in MemberConfig. Raises InvalidInput for fewer than one, or more than a
    planner takes.
    """
    micro_batches = configure_threads(spec.resources.trainers, spec.training.batch_size)
    model = load_model(spec)
    layout = build_layout(spec, model)
    step = TrainStep(
        build_network(model.build, spec.training.seed),
        batch_size=spec.training.batch_size,
        dense=layout.dense,
        width=layout.width,
        joined=layout.joined,
        xla=spec.training.compiler,
        micro_batches=micro_batches,
        project=spec.training.project == "auto",
    )
    log.info("the step runs %s", "compiled by XLA" if step.xla else "as a TensorFlow graph")
    restored = manifests.read(Storage(), run.restore) if run.restore else None
    planner = layout.planner(ShardMap.from_run(run), plan_threads)
    return _Job(run, spec, restored, layout, planner, step)


def _embedded(process: MemberProcess, spec: JobSpec) -> _Own:
    """The parameter servers that live in this trainer."""
    run, settings, metrics = process.run, process.settings, process.metrics
    shard = block = None
    if spec.resources.embedded:
        shard = EmbeddedShard(
            run, settings.rank, metrics, settings.shard_threads, settings.standby_mb
        )
    if settings.rank < embedded_blocks(spec.resources):
        block = EmbeddedBlock(run, settings.rank, metrics)
    return _Own(shard, block)


def _serve(process: MemberProcess, gate: PauseGate, own: Sequence[Embedded]) -> rpc.Server:
    """Answers the checkpoint service and, with servers of its `own`, all trainers."""
    servicer = TrainerServicer(gate, process.settings.generation)

    def register(server: grpc.Server) -> None:
        trainer_pb2_grpc.add_TrainerServicer_to_server(servicer, server)
        for embedded in own:
            embedded.register(server)

    server = rpc.serve(
        register,
        host=process.settings.host,
        port=process.settings.port,
        registry=process.metrics,
        threads=CONTROL_THREADS + sum(embedded.threads for embedded in own),
        tls=process.tls,
        traces=process.traces,
        laden=joined(embedded.laden for embedded in own),
    )
    process.update(address=server.address)
    for embedded in own:
        process.serve_also(embedded.role, embedded.status)
    return server


def _connect(
    process: MemberProcess,
    job: _Job,
    own: _Own,
    stop: threading.Event,
    cut: threading.Event,
) -> tuple[SparseClient, DenseClient | KStepClient]:
    """Clients of all parameter servers, once these are up; `own` are called without a socket."""

    def addresses(role: Role, count: int) -> list[str]:
        wait = process.registry.wait_members
        members = wait(job.run.job, job.run.generation, role, count, MEMBERS_SECONDS, stop)
        return [m.address for m in members]

    sparse_at = addresses(Role.SPARSE_PS, job.spec.resources.sparse_ps)
    dense_at = addresses(Role.DENSE_PS, job.spec.resources.dense_ps)
    training = job.spec.training
    caller: dict[str, Any] = {
        "generation": job.run.generation,
        "epoch": job.run.epoch,
        "rank": process.settings.rank,
        "incarnation": process.settings.incarnation,
        "stop": cut,
        "metrics": ClientMetrics(process.metrics),
        "tls": process.tls,
        "traces": process.traces if process.traces.on else None,
    }
    shard = own.shard.servicer if own.shard else None
    block = own.block.servicer if own.block else None
    sparse = SparseClient(sparse_at, values=training.wire.values, own=shard, **caller)
    dense = DenseClient(dense_at, own=block, **caller)
    return sparse, KStepClient(dense, training.k) if training.mode == "kstep" else dense


def _configure(job: _Job, sparse: SparseClient, dense: DenseClient | KStepClient) -> None:
    """Creates or joins tables and blocks."""
    rows = sparse.configure(job.layout.tables, job.spec.training.seed)
    optimizer, params, options = dense_optimizer(job.spec.optimizers.dense)
    parameters = dense.configure(optimizer, params, job.step.initial(), options)
    log.info("%d dense parameters, %d restored rows", len(parameters), rows)


def _take_steps(
    process: MemberProcess,
    job: _Job,
    servers: Servers,
    takeover: Takeover,
    gate: PauseGate,
    metrics: TrainerMetrics,
    stop: threading.Event,
) -> Progress:
    """Trains to the end of the data. Raises Stopped when `stop` comes first."""
    rank, restored = process.settings.rank, job.restored
    source = open_training(
        job.spec,
        rank=rank,
        trainers=job.spec.resources.trainers,
        resume=from_manifest(restored) if restored else None,
        claim=takeover.claim,
    )
    claimed = takeover.result
    before = claimed.samples + (restored.samples if restored and rank == 0 else 0)
    progress = Progress(
        metrics, restored_samples=before, staleness_bound=job.spec.training.staleness
    )
    process.logs.follow("step", lambda: progress.step)
    live = job.spec.data.source.startswith("kafka://")
    batches = ReadAhead(
        source,
        job.planner,
        metrics,
        low=LOW_BATCHES,
        idle_after=IDLE_SECONDS if live else None,
        observer=progress,
    )
    ahead = RowsAhead(batches, servers, metrics, depth=job.spec.rows_ahead, after=claimed.step)
    memory.settle_objects()
    with closing(batches), closing(ahead) as rows:
        process.announce(Phase.READY, progress.status)
        loop = Loop(
            rows=rows,
            servers=servers,
            step=job.step,
            positions=Positions(claimed.positions, claimed.ahead),
            gate=gate,
            progress=progress,
            metrics=metrics,
            spans=_spans(process),
        )
        if not loop.run(takeover.parameters, stop):
            raise Stopped
    return progress


def _spans(process: MemberProcess) -> StepSpans | None:
    return StepSpans(process.traces, process.otlp.step_every) if process.traces.on else None


def _evaluate(
    job: _Job,
    servers: Servers,
    dense: DenseSide,
    progress: Progress,
    metrics: TrainerMetrics,
    stop: threading.Event,
) -> None:
    """Judges the held-out rows once all trainers have left, so that every push is in."""
    while dense.trainers() > 0:
        if stop.wait(LEAVING_SECONDS):
            raise Stopped
    source = open_holdout(job.spec)
    if source is None:
        return
    with closing(ReadAhead(source, job.planner, metrics)) as batches:
        progress.evaluated(holdout.evaluate(batches, servers, job.step, dense.pull(), stop))


@contextmanager
def _winding_down(stop: threading.Event, gate: PauseGate, cut: threading.Event) -> Iterator[None]:
    """When `stop` comes, ends a pause at once, and calls to servers once a step has had time to
    finish.
    """
    done = threading.Event()

    def watch() -> None:
        stop.wait()
        gate.close()
        done.wait(STEP_SECONDS)
        cut.set()

    threading.Thread(target=watch, name="winding-down", daemon=True).start()
    try:
        yield
    finally:
        done.set()


if __name__ == "__main__":
    member.main(Role.TRAINER, train)
