"""The dense-PS servicer: one block of the flat array of dense parameters, its wire and its
snapshots.

When and how a trainer's push reaches the block is the affair of the mode's pace, `dense_paces`.
Every trainer gets the new values, or what was merged, as the reply to its push.
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

from ps_service import _native, codec, halves
from ps_service.own import BlockPush
from ps_service.ranges import BatchRange, position_to_proto
from ps_service.server import snapshot
from ps_service.server.assignment import Assignment
from ps_service.server.barrier import Fenced
from ps_service.server.dense_paces import (
    Gradient,
    LocalSteps,
    Merged,
    OnArrival,
    Stepped,
    pace_of,
)
from ps_service.server.metrics import DenseMetrics
from ps_service.server.ranges import RangeTable
from ps_service.server.snapshot import DensePlace, DenseSnapshot
from ps_service.server.verbs import SharedVerbs, Steps
from ps_service.tables import UpdateOptions
from services.api import manifest as manifests
from services.api.manifest import PositionEntry
from services.api.optimizers import KSTEP_OPTIMIZERS
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


class DenseServicer(SharedVerbs, ps_pb2_grpc.DensePsServicer):
    """Serves one block."""

    def __init__(
        self,
        assignment: Assignment,
        storage: Storage,
        metrics: DenseMetrics,
        barrier_seconds: float = BARRIER_SECONDS,
    ) -> None:
        super().__init__(assignment)
        self._storage, self._metrics = storage, metrics
        self._configuring = threading.Lock()
        self._state: _State | None = None
        self._pace = pace_of(assignment, self._configured, metrics, barrier_seconds)
        metrics.trainers.set_function(lambda: float(self._pace.remaining))

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
        state = self._admitted(request.caller)
        if not request.moments:
            return _current(state)
        _require_moments(state)
        return ps_pb2.DenseValuesReply(
            values=codec.pack_floats(state.block.values()),
            version=state.block.step,
            roots=halves.pack(state.block.roots()),
            momentum=codec.pack_floats(state.block.momentum()),
        )

    def Push(
        self, request: ps_pb2.DensePushRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.DenseValuesReply:
        """See ps.proto."""
        stepped = self.take(request, request.grads)
        return ps_pb2.DenseValuesReply(
            values=stepped.values, version=stepped.version, pause=stepped.pause
        )

    def take(self, request: ps_pb2.DensePushRequest, grads: bytes | memoryview) -> Stepped:
        """Push, with `grads` for that of the request."""
        size = self._admitted(request.caller).place.size
        return self._push(request, codec.unpack_floats(grads, "grads", size))

    @property
    def pushes_wait(self) -> bool:
        """Whether a push waits for those of other trainers."""
        return self._assignment.trainers > 1 and not isinstance(self._pace, OnArrival)

    def push_floats(self, push: BlockPush) -> Stepped:
        """Push for the trainer of this process."""
        self._admitted(push.request.caller)
        return self._push(push.request, push.grads)

    def _push(self, request: ps_pb2.DensePushRequest, grads: NDArray[np.float32]) -> Stepped:
        if isinstance(self._pace, Merged):
            raise Conflict("Push: this job's mode is kstep, its trainers call Merge")
        caller = request.caller
        gradient = Gradient(
            samples=request.samples,
            incarnation=caller.incarnation,
            range=BatchRange.from_proto(request.range) if request.HasField("range") else None,
            grads=grads,
            pause=request.pause,
            read_version=request.read_version,
        )
        try:
            return self._pace.push(caller.rank, caller.step, gradient)
        except Fenced:
            self._metrics.ranges.labels("fenced").inc()
            raise

    def Merge(
        self, request: ps_pb2.DenseMergeRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.DenseMergeReply:
        """See ps.proto."""
        state = self._admitted(request.caller)
        if not isinstance(self._pace, Merged):
            raise Conflict("Merge: this job's mode is not kstep, its trainers call Push")
        _require_moments(state)
        size, told = state.place.size, request.pause or request.leaving
        part = LocalSteps(
            steps=request.steps,
            samples=request.samples,
            change=halves.unpack(request.change, "change", size),
            roots=halves.unpack(request.roots, "roots", size),
            momentum=codec.unpack_floats(request.momentum, "momentum", size if told else 0),
            pause=request.pause,
            leaving=request.leaving,
        )
        caller = request.caller
        return self._pace.merge(caller.rank, request.round, part, caller.incarnation)

    def BeginSnapshot(
        self, request: ps_pb2.SnapshotRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.BeginSnapshotReply:
        """See ps.proto."""
        state = self._admitted(request.caller)
        applied = state.ranges.positions() if self._pace.by_range else []
        self._pending.begin(
            request.uri, lambda: DenseSnapshot(state.block, state.place, self._assignment, applied)
        )
        return ps_pb2.BeginSnapshotReply(
            version=self._pace.last_step, applied=map(position_to_proto, applied)
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
            "trainers": self._pace.remaining,
        }

    def close(self) -> None:
        """Ends the waits of pushes with Unavailable, so that the process can drain."""
        self._pending.close()
        self._pace.close()

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

    def _ranges_for(self, caller: ps_pb2.Caller) -> RangeTable:
        return self._admitted(caller).ranges

    @property
    def _steps(self) -> Steps:
        return self._pace

    def _configured(self) -> _State:
        assert self._state is not None  # pushes come after Configure
        return self._state


def _current(state: _State) -> ps_pb2.DenseValuesReply:
    return ps_pb2.DenseValuesReply(
        values=codec.pack_floats(state.block.values()), version=state.block.step
    )


def _require_moments(state: _State) -> None:
    if state.place.optimizer not in KSTEP_OPTIMIZERS:
        raise Conflict(
            f"mode kstep shares a second moment, which {state.place.optimizer} has not; "
            f"the dense optimizer must be one of {', '.join(KSTEP_OPTIMIZERS)}"
        )
