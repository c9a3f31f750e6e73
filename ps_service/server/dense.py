"""The dense-PS servicer: one block of the flat array of dense parameters, stepped once all trainers
have pushed.

A step's gradient is the mean over the samples of all trainers, summed in rank order, so it has the
same bits however the array is divided into blocks. Every trainer gets the new values as the reply
to its push.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from ps_service import _native, codec
from ps_service.ranges import BatchRange, position_to_proto
from ps_service.server import snapshot
from ps_service.server.assignment import Assignment
from ps_service.server.barrier import Fenced, StepBarrier
from ps_service.server.metrics import DenseMetrics
from ps_service.server.pending import PendingSnapshot
from ps_service.server.ranges import RangeTable, starts_of
from ps_service.server.snapshot import DensePlace, DenseSnapshot
from ps_service.tables import UpdateOptions
from services.api import manifest as manifests
from services.api.manifest import PositionEntry
from services.kit.errors import Conflict, InvalidInput
from services.kit.storage import Storage
from services.kit.telemetry import timed
from services.wire import ps_pb2, ps_pb2_grpc

log = logging.getLogger(__name__)

BARRIER_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class _State:
    """What Configure made."""

    place: DensePlace
    block: _native.DenseBlock
    ranges: RangeTable


@dataclasses.dataclass(frozen=True)
class _Gradient:
    """One trainer's validated push."""

    samples: int
    incarnation: int
    range: BatchRange | None
    grads: NDArray[np.float32]
    pause: bool


@dataclasses.dataclass(frozen=True)
class _Stepped:
    """What every trainer of a step is told."""

    values: bytes
    version: int
    pause: bool


class DenseServicer(ps_pb2_grpc.DensePsServicer):
    """Serves one block."""

    def __init__(
        self,
        assignment: Assignment,
        storage: Storage,
        metrics: DenseMetrics,
        barrier_seconds: float = BARRIER_SECONDS,
    ) -> None:
        self._assignment, self._storage, self._metrics = assignment, storage, metrics
        self._configuring = threading.Lock()
        self._state: _State | None = None
        self._barrier: StepBarrier[_Gradient, _Stepped] = StepBarrier(
            range(assignment.trainers), self._apply, barrier_seconds
        )
        self._pending: PendingSnapshot[DenseSnapshot] = PendingSnapshot()
        metrics.trainers.set_function(lambda: float(self._barrier.remaining))

    def Configure(
        self, request: ps_pb2.DenseConfigureRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.DenseValuesReply:
        """See ps.proto. A call that comes while another one restores waits for it."""
        self._assignment.admit(request.caller)
        if len(request.values) % codec.FLOAT.itemsize:
            raise InvalidInput(f"values has {len(request.values)} bytes, expected a multiple of 4")
        size = len(request.values) // codec.FLOAT.itemsize
        place = DensePlace(
            request.offset,
            size,
            request.optimizer,
            dict(request.params),
            UpdateOptions.from_proto(request.options),
        )
        with self._configuring:
            if self._state is None:
                self._state = self._create(
                    place, codec.unpack_floats(request.values, "values", size)
                )
            if place != self._state.place:
                raise Conflict(f"{place} differs from the configured {self._state.place}")
        return _current(self._state)

    def Pull(
        self, request: ps_pb2.DensePullRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.DenseValuesReply:
        """See ps.proto."""
        return _current(self._admitted(request.caller))

    def Push(
        self, request: ps_pb2.DensePushRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.DenseValuesReply:
        """See ps.proto. A repeated push gets the reply of the first, `pause` included."""
        state = self._admitted(request.caller)
        grads = codec.unpack_floats(request.grads, "grads", state.place.size)
        caller = request.caller
        rows = BatchRange.from_proto(request.range) if request.HasField("range") else None
        gradient = _Gradient(request.samples, caller.incarnation, rows, grads, request.pause)
        try:
            if rows is not None:
                state.ranges.check(rows, caller.incarnation)
            with timed(self._metrics.barrier):
                outcome = self._barrier.arrive(
                    caller.rank, caller.step, gradient, caller.incarnation
                )
        except Fenced:
            self._metrics.ranges.labels("fenced").inc()
            raise
        if outcome.duplicate:
            self._metrics.duplicate_pushes.inc()
        stepped = outcome.result
        return ps_pb2.DenseValuesReply(
            values=stepped.values, version=stepped.version, pause=stepped.pause
        )

    def Leave(
        self, request: ps_pb2.LeaveRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.LeaveReply:
        """See ps.proto."""
        self._assignment.admit(request.caller)
        caller = request.caller
        return ps_pb2.LeaveReply(remaining=self._barrier.leave(caller.rank, caller.incarnation))

    def Claim(
        self, request: ps_pb2.ClaimRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.ClaimReply:
        """See ps.proto."""
        state, caller = self._admitted(request.caller), request.caller
        first = self._barrier.join(caller.rank, caller.step + 1, caller.incarnation)
        applied = state.ranges.claim(starts_of(request), caller.incarnation)
        return ps_pb2.ClaimReply(applied=applied, step=first - 1)

    def expel(self, rank: int, incarnation: int) -> None:
        """Every process of trainer `rank` before `incarnation` is dead."""
        self._barrier.expel(rank, incarnation)

    def BeginSnapshot(
        self, request: ps_pb2.SnapshotRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.BeginSnapshotReply:
        """See ps.proto."""
        state = self._admitted(request.caller)
        applied = state.ranges.positions()
        self._pending.begin(
            request.uri, lambda: DenseSnapshot(state.block, state.place, self._assignment, applied)
        )
        return ps_pb2.BeginSnapshotReply(
            version=self._barrier.last_step, applied=map(position_to_proto, applied)
        )

    def Snapshot(
        self, request: ps_pb2.SnapshotRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.SnapshotReply:
        """See ps.proto."""
        self._admitted(request.caller)
        snapshot = self._pending.take(request.uri)
        with timed(self._metrics.snapshot):
            written = snapshot.write(self._storage, request.uri)
        log.info("wrote %s: %d bytes", request.uri, written.bytes)
        return ps_pb2.SnapshotReply(
            uri=request.uri,
            bytes=written.bytes,
            crc32c=written.crc32c,
            rows=written.rows,
            version=snapshot.version,
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
    ) -> ps_pb2.DenseStatsReply:
        """See ps.proto; no parameters before Configure."""
        return ps_pb2.DenseStatsReply(**self.status())

    def status(self) -> dict[str, Any]:
        """What the lease says: parameters, version, trainers."""
        state = self._state
        return {
            "parameters": state.place.size if state else 0,
            "version": state.block.step if state else 0,
            "trainers": self._barrier.remaining,
        }

    def close(self) -> None:
        """Ends the waits of pushes with Unavailable, so that the process can drain."""
        self._pending.close()
        self._barrier.close()

    def _create(self, place: DensePlace, initial: NDArray[np.float32]) -> _State:
        try:
            block = _native.DenseBlock(
                initial,
                optimizer=place.optimizer,
                optimizer_params=dict(place.params),
                options=place.options.native(),
            )
        except ValueError as error:
            raise InvalidInput(f"dense: {error}") from error
        positions: Sequence[PositionEntry] = ()
        if self._assignment.restore:
            positions = manifests.read(self._storage, self._assignment.restore).positions
            block = snapshot.read_dense(
                self._storage, self._assignment.restore, place, self._assignment
            )
            log.info("restored %d parameters from %s", place.size, self._assignment.restore)
        self._metrics.parameters.set(place.size)
        self._metrics.version.set_function(lambda: float(block.step))
        return _State(place, block, RangeTable(self._metrics.ranges, positions))

    def _admitted(self, caller: ps_pb2.Caller) -> _State:
        self._assignment.admit(caller)
        if self._state is None:
            raise Conflict(f"dense-PS block {self._assignment.rank} is not configured yet")
        return self._state

    def _apply(self, gradients: list[tuple[int, _Gradient]]) -> _Stepped:
        """Averages over samples in rank order; a step without any samples changes nothing.

        A range that a trainer which died had given to this block before counts no second time.
        """
        state = self._state
        assert state is not None  # pushes come after Configure
        fresh = [g for _, g in gradients if state.ranges.take(g)]
        total = sum(g.samples for g in fresh)
        if total > 0:
            with timed(self._metrics.apply):
                mean = np.zeros(state.place.size, dtype=np.float32)
                for gradient in fresh:
                    mean += gradient.grads * np.float32(gradient.samples / total)
                state.block.apply(mean)
        values = codec.pack_floats(state.block.values())
        return _Stepped(values, state.block.step, all(g.pause for _, g in gradients))


def _current(state: _State) -> ps_pb2.DenseValuesReply:
    return ps_pb2.DenseValuesReply(
        values=codec.pack_floats(state.block.values()), version=state.block.step
    )
