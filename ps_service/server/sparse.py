"""The sparse-PS servicer: bytes of a request -> native shard -> bytes of a reply, each push exactly
once.

All state of a job's attempt is made by `Configure`. Arrays are checked against the tables before
anything changes, so that a bad request of one trainer never spoils a step of the others.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc
import numpy as np
from numpy.typing import NDArray

from ps_service import _native, codec
from ps_service.own import RowPush, RowRead, Rows, RowsPushed
from ps_service.ranges import position_to_proto
from ps_service.server import snapshot
from ps_service.server.assignment import Assignment
from ps_service.server.barrier import Fenced, StepBarrier, StepLedger
from ps_service.server.gradient import Gradient, joined_usage
from ps_service.server.lifecycle import Lifecycle
from ps_service.server.metrics import SparseMetrics
from ps_service.server.ranges import RangeTable
from ps_service.server.requests import gradient_of, gradient_with, read_of
from ps_service.server.snapshot import Restored, SparseSnapshot
from ps_service.server.verbs import SharedVerbs
from ps_service.tables import TableSpec
from services.kit.errors import Conflict, Exhausted, InvalidInput
from services.kit.storage import Storage
from services.kit.telemetry import timed
from services.wire import ps_pb2, ps_pb2_grpc

log = logging.getLogger(__name__)

_Values = TypeVar("_Values")

BARRIER_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class _State:
    """What Configure made."""

    tables: tuple[TableSpec, ...]
    seed: int
    shard: _native.SparseShard
    dims: NDArray[np.int64]  # (T,)
    restored: Restored
    lifecycle: Lifecycle
    ranges: RangeTable


@dataclasses.dataclass(frozen=True)
class _Applied:
    keys: int
    missing: int


class SparseServicer(SharedVerbs, ps_pb2_grpc.SparsePsServicer):
    """Serves the partitions of one shard."""

    def __init__(
        self,
        assignment: Assignment,
        storage: Storage,
        metrics: SparseMetrics,
        barrier_seconds: float = BARRIER_SECONDS,
    ) -> None:
        super().__init__(assignment)
        self._storage, self._metrics = storage, metrics
        self._configuring = threading.Lock()
        self._state: _State | None = None
        members = range(assignment.trainers)
        self._barrier: StepBarrier[Gradient, _Applied] = StepBarrier(
            members, self._apply_merged, barrier_seconds
        )
        self._ledger = StepLedger(members)
        # Made long before the tables, whose first rows are to find it filled.
        self._standby = _native.StandbyMemory(assignment.standby_bytes)
        metrics.standby.expose(self._standby)

    def Configure(
        self, request: ps_pb2.SparseConfigureRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.SparseConfigureReply:
        """See ps.proto. A call that comes while another one restores waits for it."""
        self._assignment.admit(request.caller)
        tables = tuple(TableSpec.from_proto(t) for t in request.tables)
        with self._configuring:
            if self._state is None:
                self._state = self._create(tables, request.seed)
            _check_agrees(self._state, tables, request.seed)
            return ps_pb2.SparseConfigureReply(restored_rows=self._state.restored.rows)

    def Pull(
        self, request: ps_pb2.SparsePullRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.SparsePullReply:
        """See ps.proto."""
        return ps_pb2.SparsePullReply(values=self.read(request))

    def read(self, request: ps_pb2.SparsePullRequest) -> bytes:
        """Pull: the values of its reply."""
        state = self._admitted(request.caller)
        return self._read(read_of(request, state.dims), state)

    def pull_rows(self, read: RowRead) -> Rows:
        """Pull for the trainer of this process."""
        return self._rows(read, self._admitted(read.request.caller))

    def Push(
        self, request: ps_pb2.SparsePushRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.SparsePushReply:
        """See ps.proto. In mode sync `applied` and `missing` are those of the whole step of all
        trainers.
        """
        pushed = self.take(request, request.grads)
        return ps_pb2.SparsePushReply(
            applied=pushed.applied,
            missing=pushed.missing,
            duplicate=pushed.duplicate,
            then=[ps_pb2.SparsePullReply(values=bytes(rows.values)) for rows in pushed.then],
        )

    def take(self, request: ps_pb2.SparsePushRequest, grads: bytes | memoryview) -> RowsPushed:
        """Push, with `grads` for those of the request."""
        state = self._admitted(request.caller)
        gradient = gradient_of(request, grads, state.dims)
        then = [read_of(pull, self._admitted(pull.caller).dims) for pull in request.then]
        pushed = self._push_once(state, request, gradient)
        return dataclasses.replace(pushed, then=[Rows(self._read(read, state)) for read in then])

    @property
    def pushes_wait(self) -> bool:
        """Whether a push waits for those of other trainers."""
        return self._assignment.sync

    def push_rows(self, push: RowPush) -> RowsPushed:
        """Push for the trainer of this process."""
        state = self._admitted(push.request.caller)
        gradient = gradient_with(push.request, push.counts, push.keys, push.grads)
        pushed = self._push_once(state, push.request, gradient)
        then = [self._rows(read, state) for read in push.then]
        return dataclasses.replace(pushed, then=then)

    def _push_once(
        self, state: _State, request: ps_pb2.SparsePushRequest, gradient: Gradient
    ) -> RowsPushed:
        """The push, with nothing read then."""
        state.lifecycle.observe(request.event_time)
        try:
            applied = self._push(state, request.caller.rank, gradient)
        except Fenced:
            self._metrics.ranges.labels("fenced").inc()
            raise
        if applied is None:
            self._metrics.duplicate_pushes.inc()
            return RowsPushed(applied=0, missing=0, duplicate=True, then=())
        self._metrics.staleness.observe(gradient.step - request.read_step)
        self._metrics.rounding.count("Push", request.clipped, request.flushed)
        return RowsPushed(applied.keys, applied.missing, duplicate=False, then=())

    def BeginSnapshot(
        self, request: ps_pb2.SnapshotRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.BeginSnapshotReply:
        """See ps.proto."""
        state = self._admitted(request.caller)
        since = request.since if request.HasField("since") else None
        applied = state.ranges.positions()
        with state.lifecycle.held():  # so that an eviction walk is in it as a whole or not at all
            self._pending.begin(
                request.uri,
                lambda: SparseSnapshot(
                    state.shard,
                    state.tables,
                    self._assignment,
                    step=state.restored.step + self._steps.last_step,
                    event_time=state.lifecycle.event_time,
                    id=request.id,
                    since=since,
                    applied=applied,
                ),
            )
        return ps_pb2.BeginSnapshotReply(applied=map(position_to_proto, applied))

    def Snapshot(
        self, request: ps_pb2.SnapshotRequest, context: grpc.ServicerContext
    ) -> ps_pb2.SnapshotReply:
        """See ps.proto."""
        self._admitted(request.caller)
        snapshot = self._pending.take(request.uri)
        with timed(self._metrics.snapshot):
            written = snapshot.write(self._storage, request.uri, context.is_active)
        log.info("wrote %s: %d rows, %d bytes", request.uri, sum(written.rows), written.bytes)
        return ps_pb2.SnapshotReply(
            uri=request.uri, bytes=written.bytes, crc32c=written.crc32c, rows=written.rows
        )

    def Stats(
        self, _request: ps_pb2.StatsRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.SparseStatsReply:
        """See ps.proto; zeros before Configure."""
        state = self._state
        return ps_pb2.SparseStatsReply(
            rows=[int(n) for n in state.shard.rows()] if state else [],
            bytes=state.shard.bytes() if state else 0,
            partitions=len(self._assignment.shard_map.partitions_of(self._assignment.rank)),
            tables=state.lifecycle.stats() if state else [],
        )

    def Removed(
        self, request: ps_pb2.RemovedRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.RemovedReply:
        """See ps.proto."""
        state = self._admitted(request.caller)
        counts, keys, complete = state.shard.removed()
        return ps_pb2.RemovedReply(
            counts=counts.tolist(), keys=codec.pack_keys(keys), complete=complete
        )

    def status(self) -> dict[str, Any]:
        """What the lease says: rows, bytes, configured, restored_rows."""
        state = self._state
        if state is None:
            return {"rows": 0, "bytes": 0, "configured": False, "restored_rows": 0}
        return {
            "rows": int(state.shard.rows().sum()),
            "bytes": state.shard.bytes(),
            "configured": True,
            "restored_rows": state.restored.rows,
        }

    def close(self) -> None:
        """Ends the waits of pushes with Unavailable, so that the process can drain."""
        self._pending.close()
        self._barrier.close()
        if self._state is not None:
            self._state.lifecycle.close()

    def _create(self, tables: tuple[TableSpec, ...], seed: int) -> _State:
        if not tables:
            raise InvalidInput("tables is empty; a sparse-PS needs at least one")
        partitions = self._assignment.shard_map.partitions
        try:
            native = [t.native() for t in tables]
            shard = _native.SparseShard(
                native,
                partitions=partitions,
                seed=seed,
                threads=self._assignment.shard_threads,
                standby=self._standby,
            )
        except ValueError as error:
            raise InvalidInput(f"tables: {error}") from error
        log.info("%d threads for a large request", self._assignment.shard_threads)
        restored = Restored(0, 0)
        if self._assignment.restore:
            restored = snapshot.read_sparse(
                self._storage, self._assignment.restore, shard, tables, self._assignment
            )
            log.info("restored %d rows from %s", restored.rows, self._assignment.restore)
        self._metrics.expose(shard, [table.name for table in tables])
        self._metrics.restored_rows.set(restored.rows)
        dims = np.array([t.dim for t in tables], dtype=np.int64)
        lifecycle = Lifecycle(
            shard,
            tables,
            self._assignment.shard_map.partitions_of(self._assignment.rank),
            self._metrics.lifecycle,
            sync=self._assignment.sync,
        )
        lifecycle.start()
        ranges = RangeTable(self._metrics.ranges, restored.positions)
        return _State(tables, seed, shard, dims, restored, lifecycle, ranges)

    def _admitted(self, caller: ps_pb2.Caller) -> _State:
        self._assignment.admit(caller)
        if self._state is None:
            raise Conflict(f"sparse-PS shard {self._assignment.rank} is not configured yet")
        return self._state

    def _ranges_for(self, caller: ps_pb2.Caller) -> RangeTable:
        return self._admitted(caller).ranges

    def _read(self, read: RowRead, state: _State) -> bytes:
        """The rows, in the request's coding."""
        coding = read.request.value_coding
        if coding == ps_pb2.VALUE_CODING_FP32:
            return self._pull(state.shard.pull, read, state)
        packed = codec.pack_values(self._pull(state.shard.pull_array, read, state), coding)
        self._metrics.rounding.count("Pull", packed.clipped, packed.flushed)
        return packed.data

    def _rows(self, read: RowRead, state: _State) -> Rows:
        """The rows as they are, for whoever asks beside the wire: always fp32."""
        return Rows(self._pull(state.shard.pull_array, read, state).view(np.uint8).data)

    def _pull(self, verb: Callable[..., _Values], read: RowRead, state: _State) -> _Values:
        """By one of the shard's two verbs that pull."""
        request = read.request
        if not request.read_only:
            state.lifecycle.observe(request.event_time)
        try:
            values = verb(
                read.counts,
                read.keys,
                insert=not request.read_only,
                step=state.restored.step + request.caller.step,
                event_time=request.event_time,
            )
        except MemoryError as error:
            raise Exhausted(str(error)) from error
        purpose = "read_only" if request.read_only else "train"
        self._metrics.pulled_keys.labels(purpose).inc(len(read.keys))
        return values

    @property
    def _steps(self) -> StepBarrier[Gradient, _Applied] | StepLedger:
        """Who keeps count of the trainers' steps in this mode."""
        return self._barrier if self._assignment.sync else self._ledger

    def _push(self, state: _State, rank: int, gradient: Gradient) -> _Applied | None:
        """None for a duplicate."""
        step, incarnation, rows = gradient.step, gradient.incarnation, gradient.range
        if self._assignment.sync:
            if rows is not None:
                state.ranges.check(rows, incarnation)
            with timed(self._metrics.barrier):
                outcome = self._barrier.arrive(rank, step, gradient, incarnation)
            return None if outcome.duplicate else outcome.result

        def apply() -> _Applied | None:
            if rows is None:
                return self._apply([gradient])
            return state.ranges.apply(
                rows, incarnation, gradient.samples, lambda: self._apply([gradient])
            )

        return self._ledger.apply(rank, step, apply, incarnation)

    def _apply_merged(self, gradients: list[tuple[int, Gradient]]) -> _Applied:
        """One update with the gradient of the joined batch: each trainer's mean weighs as much as
        it has samples.
        """
        assert self._state is not None  # pushes come after Configure
        fresh = [g for _, g in gradients if self._state.ranges.take(g)]
        total = sum(g.samples for g in fresh)
        applied = _Applied(0, 0)
        if total > 0:
            applied = self._apply(
                [
                    dataclasses.replace(g, grads=g.grads * np.float32(g.samples / total))
                    for g in fresh
                ]
            )
        self._state.lifecycle.stepped(gradients[0][1].step)
        return applied

    def _apply(self, gradients: Sequence[Gradient]) -> _Applied:
        """All in one native push: gradients of equal keys are summed in this order."""
        state = self._state
        assert state is not None  # pushes come after Configure
        if len(gradients) == 1:
            counts, keys, grads = gradients[0].counts, gradients[0].keys, gradients[0].grads
        else:
            counts = np.concatenate([g.counts for g in gradients])
            keys = np.concatenate([g.keys for g in gradients])
            grads = np.concatenate([g.grads for g in gradients])
        # Schedules run over the whole life of the job, a generation's steps begin at 1.
        result = state.shard.push(
            counts,
            keys,
            grads,
            step=state.restored.step + max(g.step for g in gradients),
            event_time=max(g.event_time for g in gradients),
            usage=joined_usage(gradients),
        )
        self._metrics.pushed_keys.inc(result.applied)
        self._metrics.missing_keys.inc(result.missing)
        return _Applied(result.applied, result.missing)


def _check_agrees(state: _State, tables: tuple[TableSpec, ...], seed: int) -> None:
    if seed != state.seed:
        raise Conflict(f"seed {seed} differs from the configured {state.seed}")
    if len(tables) != len(state.tables):
        raise Conflict(f"{len(tables)} tables differ from the configured {len(state.tables)}")
    for given, held in zip(tables, state.tables, strict=True):
        if given != held:
            raise Conflict(f"table {given} differs from the configured {held}")
