"""The sparse shard in a trainer's process: the server of `python -m ps_service sparse`, made and
served by the trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import prometheus_client

from ps_service.server.assignment import Assignment
from ps_service.server.metrics import SparseMetrics
from ps_service.server.sparse import SparseServicer
from services.kit.discovery import Run
from services.kit.storage import Storage
from services.wire import ps_pb2_grpc


class EmbeddedShard:
    """Shard `rank` of the run. `SparseClient(own=shard.servicer)` calls it without a socket."""

    def __init__(
        self,
        run: Run,
        rank: int,
        registry: prometheus_client.CollectorRegistry,
        shard_threads: int = 0,
    ) -> None:
        """`shard_threads` as in MemberConfig. Raises InvalidInput for a bad spec, a rank there is
        not, or a bad number of threads.
        """
        assignment = Assignment.of_sparse(run, rank, shard_threads)
        servicer = SparseServicer(assignment, Storage(), SparseMetrics(registry))
        self.servicer: ps_pb2_grpc.SparsePsServicer = servicer
        self.threads = assignment.threads  # that its gRPC server needs
        self.status: Callable[[], dict[str, Any]] = servicer.status  # for its lease
        self.close: Callable[[], None] = servicer.close  # ends waits, so that the server can drain

    def register(self, server: grpc.Server) -> None:
        """Lets `server` answer the shard's verbs."""
        ps_pb2_grpc.add_SparsePsServicer_to_server(self.servicer, server)
