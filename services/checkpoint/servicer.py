"""gRPC shell over the coordinator."""

from __future__ import annotations

import grpc

from services.checkpoint.coordinator import Coordinator
from services.kit.discovery import Checkpoint
from services.wire import checkpoint_pb2, checkpoint_pb2_grpc

_LONGEST_WAIT = 600.0  # seconds, for a caller without a deadline


class CheckpointServicer(checkpoint_pb2_grpc.CheckpointServicer):
    """See services/wire/checkpoint.proto."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def Trigger(
        self, request: checkpoint_pb2.TriggerRequest, context: grpc.ServicerContext
    ) -> checkpoint_pb2.ManifestRef:
        """Takes a checkpoint now; while another one of the job is made, waits for it first."""
        left = context.time_remaining()
        wait = _LONGEST_WAIT if left is None else min(left, _LONGEST_WAIT)
        return _ref(self._coordinator.take(request.job, request.generation, wait))

    def List(
        self, request: checkpoint_pb2.ListRequest, context: grpc.ServicerContext
    ) -> checkpoint_pb2.ListReply:
        """Complete checkpoints below `to`, or below where the job's run says."""
        del context
        found = self._coordinator.complete(request.job, request.to)
        return checkpoint_pb2.ListReply(checkpoints=[_ref(checkpoint) for checkpoint in found])


def _ref(checkpoint: Checkpoint) -> checkpoint_pb2.ManifestRef:
    return checkpoint_pb2.ManifestRef(
        id=checkpoint.id,
        uri=checkpoint.uri,
        created=checkpoint.created,
        samples=checkpoint.samples,
        rows=checkpoint.rows,
        bytes=checkpoint.bytes,
    )
