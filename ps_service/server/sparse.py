"""The sparse-PS servicer: bytes of a request -> native shard -> bytes of a reply, each push exactly
once.

All state of a job's attempt is made by `Configure`. Arrays are checked against the tables before
anything changes, so that a bad request of one trainer never spoils a step of the others.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from ps_service import _native, codec
from ps_service.server import snapshot
from ps_service.server.assignment import Assignment
from ps_service.server.barrier import StepBarrier, StepLedger
from ps_service.server.lifecycle import Lifecycle
from ps_service.server.metrics import SparseMetrics
from ps_service.server.pending import PendingSnapshot
from ps_service.server.snapshot import Restored, SparseSnapshot
from ps_service.tables import TableSpec
from services.kit.errors import Conflict, InvalidInput
from services.kit.rpc import MAX_MESSAGE_BYTES
from services.kit.storage import Storage
from services.kit.telemetry import timed
from services.wire import ps_pb2, ps_pb2_grpc

log = logging.getLogger(__name__)

BARRIER_SECONDS = 120.0
_REPLY_OVERHEAD = 64  # bytes of a reply's message besides its values


@dataclasses.dataclass(frozen=True)
class _State:
    """What Configure made."""

    tables: tuple[TableSpec, ...]
    seed: int
    shard: _native.SparseShard
    dims: NDArray[np.int64]  # (T,)
    restored: Restored
    lifecycle: Lifecycle


@dataclasses.dataclass(frozen=True)
class _Gradient:
    """One trainer's validated push."""

    samples: int
    step: int
    counts: NDArray[np.uint32]  # (T,)
    keys: NDArray[np.uint64]
    grads: NDArray[np.float32]
    usage: NDArray[np.float32] | None  # (2, n) shows and clicks of the keys; None: one show each
    event_time: int


@dataclasses.dataclass(frozen=True)
class _Applied:
    keys: int
    missing: int


class SparseServicer(ps_pb2_grpc.SparsePsServicer):
    """Serves the partitions of one shard."""

    def __init__(
        self,
        assignment: Assignment,
        storage: Storage,
        metrics: SparseMetrics,
        barrier_seconds: float = BARRIER_SECONDS,
    ) -> None:
        self._assignment, self._storage, self._metrics = assignment, storage, metrics
        self._configuring = threading.Lock()
        self._state: _State | None = None
        members = range(assignment.trainers)
        self._barrier: StepBarrier[_Gradient, _Applied] = StepBarrier(
            members, self._apply_merged, barrier_seconds
        )
        self._ledger = StepLedger(members)
        self._pending: PendingSnapshot[SparseSnapshot] = PendingSnapshot()

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
        state = self._admitted(request.caller)
        return self._read(request, state, *_asked(request, state))

    def Push(
        self, request: ps_pb2.SparsePushRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.SparsePushReply:
        """See ps.proto. In mode sync `applied` and `missing` are those of the whole step of all
        trainers.
        """
        state = self._admitted(request.caller)
        rank, step = request.caller.rank, request.caller.step
        if request.read_step > step:
            raise InvalidInput(f"read_step is {request.read_step}, must be <= step {step}")
        counts, floats = _counts(request.counts, state)
        keys = codec.unpack_keys(request.keys, "keys", int(counts.sum(dtype=np.int64)))
        grads = codec.unpack_floats(request.grads, "grads", floats)
        usage = _usage(request, len(keys))
        then = [(pull, *_asked(pull, self._admitted(pull.caller))) for pull in request.then]
        state.lifecycle.observe(request.event_time)
        gradient = _Gradient(request.samples, step, counts, keys, grads, usage, request.event_time)
        applied = self._push(rank, step, gradient)
        rows = [self._read(pull, state, wanted, names) for pull, wanted, names in then]
        if applied is None:
            self._metrics.duplicate_pushes.inc()
            return ps_pb2.SparsePushReply(duplicate=True, then=rows)
        self._metrics.staleness.observe(step - request.read_step)
        return ps_pb2.SparsePushReply(applied=applied.keys, missing=applied.missing, then=rows)

    def Leave(
        self, request: ps_pb2.LeaveRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.LeaveReply:
        """See ps.proto."""
        self._assignment.admit(request.caller)
        return ps_pb2.LeaveReply(remaining=self._steps.leave(request.caller.rank))

    def BeginSnapshot(
        self, request: ps_pb2.SnapshotRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.BeginSnapshotReply:
        """See ps.proto."""
        state = self._admitted(request.caller)
        since = request.since if request.HasField("since") else None
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
                ),
            )
        return ps_pb2.BeginSnapshotReply()

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

    def DropSnapshot(
        self, request: ps_pb2.SnapshotRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.DropSnapshotReply:
        """See ps.proto."""
        self._assignment.admit(request.caller)
        self._pending.drop(request.uri)
        return ps_pb2.DropSnapshotReply()

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
            shard = _native.SparseShard(native, partitions=partitions, seed=seed)
        except ValueError as error:
            raise InvalidInput(f"tables: {error}") from error
        restored = Restored(0, 0)
        if self._assignment.restore:
            restored = snapshot.read_sparse(
                self._storage, self._assignment.restore, shard, tables, self._assignment
            )
            log.info("restored %d rows from %s", restored.rows, self._assignment.restore)
        for table_id, table in enumerate(tables):
            self._metrics.rows.labels(table.name).set_function(
                partial(_table_rows, shard, table_id)
            )
        self._metrics.bytes.set_function(lambda: float(shard.bytes()))
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
        return _State(tables, seed, shard, dims, restored, lifecycle)

    def _admitted(self, caller: ps_pb2.Caller) -> _State:
        self._assignment.admit(caller)
        if self._state is None:
            raise Conflict(f"sparse-PS shard {self._assignment.rank} is not configured yet")
        return self._state

    def _read(
        self,
        request: ps_pb2.SparsePullRequest,
        state: _State,
        counts: NDArray[np.uint32],
        keys: NDArray[np.uint64],
    ) -> ps_pb2.SparsePullReply:
        if not request.read_only:
            state.lifecycle.observe(request.event_time)
        values = state.shard.pull(
            counts,
            keys,
            insert=not request.read_only,
            step=state.restored.step + request.caller.step,
            event_time=request.event_time,
        )
        purpose = "read_only" if request.read_only else "train"
        self._metrics.pulled_keys.labels(purpose).inc(len(keys))
        return ps_pb2.SparsePullReply(values=values)

    @property
    def _steps(self) -> StepBarrier[_Gradient, _Applied] | StepLedger:
        """Who keeps count of the trainers' steps in this mode."""
        return self._barrier if self._assignment.sync else self._ledger

    def _push(self, rank: int, step: int, gradient: _Gradient) -> _Applied | None:
        """None for a duplicate."""
        if self._assignment.sync:
            with timed(self._metrics.barrier):
                outcome = self._barrier.arrive(rank, step, gradient)
            return None if outcome.duplicate else outcome.result
        return self._ledger.apply(rank, step, lambda: self._apply([gradient]))

    def _apply_merged(self, gradients: list[tuple[int, _Gradient]]) -> _Applied:
        """One update with the gradient of the joined batch: each trainer's mean weighs as much as
        it has samples.
        """
        total = sum(g.samples for _, g in gradients)
        applied = _Applied(0, 0)
        if total > 0:
            applied = self._apply(
                [
                    dataclasses.replace(g, grads=g.grads * np.float32(g.samples / total))
                    for _, g in gradients
                ]
            )
        assert self._state is not None  # pushes come after Configure
        self._state.lifecycle.stepped(gradients[0][1].step)
        return applied

    def _apply(self, gradients: Sequence[_Gradient]) -> _Applied:
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
            usage=_joined_usage(gradients),
        )
        self._metrics.pushed_keys.inc(result.applied)
        self._metrics.missing_keys.inc(result.missing)
        return _Applied(result.applied, result.missing)


def _counts(counts: Sequence[int], state: _State) -> tuple[NDArray[np.uint32], int]:
    """counts as (T,) uint32, and the floats that rows of so many keys have."""
    if len(counts) != len(state.tables):
        raise InvalidInput(f"counts has {len(counts)} entries, expected {len(state.tables)} tables")
    array = np.array(counts, dtype=np.uint32)
    return array, int(array @ state.dims)


def _asked(
    request: ps_pb2.SparsePullRequest, state: _State
) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """counts (T,) and keys of a pull that can be answered."""
    counts, floats = _counts(request.counts, state)
    if floats * codec.FLOAT.itemsize + _REPLY_OVERHEAD > MAX_MESSAGE_BYTES:
        raise InvalidInput(
            f"counts ask for {floats * codec.FLOAT.itemsize} bytes of rows, a message holds "
            f"{MAX_MESSAGE_BYTES}"
        )
    keys = codec.unpack_keys(request.keys, "keys", int(counts.sum(dtype=np.int64)))
    return counts, keys


def _usage(request: ps_pb2.SparsePushRequest, keys: int) -> NDArray[np.float32] | None:
    """(2, keys) shows and clicks, if the request has them."""
    if not request.shows and not request.clicks:
        return None
    shows = codec.unpack_floats(request.shows, "shows", keys)
    clicks = codec.unpack_floats(request.clicks, "clicks", keys)
    fits = np.isfinite(shows) & (clicks >= 0) & (clicks <= shows)
    if not fits.all():
        at = int(np.argmin(fits))
        raise InvalidInput(
            f"shows and clicks of key {at} are {shows[at]} and {clicks[at]}, "
            "must fulfil 0 <= clicks <= shows"
        )
    return np.stack([shows, clicks])


def _joined_usage(gradients: Sequence[_Gradient]) -> NDArray[np.float32] | None:
    if all(g.usage is None for g in gradients):
        return None
    once = np.array([[1], [0]], np.float32)
    return np.concatenate(
        [np.repeat(once, len(g.keys), 1) if g.usage is None else g.usage for g in gradients], axis=1
    )


def _table_rows(shard: _native.SparseShard, table: int) -> float:
    return float(shard.rows()[table])


def _check_agrees(state: _State, tables: tuple[TableSpec, ...], seed: int) -> None:
    if seed != state.seed:
        raise Conflict(f"seed {seed} differs from the configured {state.seed}")
    if len(tables) != len(state.tables):
        raise Conflict(f"{len(tables)} tables differ from the configured {len(state.tables)}")
    for given, held in zip(tables, state.tables, strict=True):
        if given != held:
            raise Conflict(f"table {given} differs from the configured {held}")
