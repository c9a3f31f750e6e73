"""Parameter servers in a trainer's process: those of `python -m ps_service sparse|dense`, made and
served by the trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import grpc
import prometheus_client

from ps_service.server.assignment import Assignment
from ps_service.server.dense import DenseServicer
from ps_service.server.laden import dense_verbs, sparse_verbs
from ps_service.server.metrics import DenseMetrics, SparseMetrics
from ps_service.server.sparse import SparseServicer
from services.kit.discovery import Role, Run
from services.kit.rpc_answer import LadenVerbs
from services.kit.storage import Storage
from services.wire import ps_pb2_grpc


class Embedded(Protocol):
    """A server as the trainer around it sees it."""

    role: Role
    threads: int  # that its gRPC server needs
    laden: LadenVerbs  # its verbs with arrays beside their messages
    status: Callable[[], dict[str, Any]]  # for its lease
    close: Callable[[], None]  # ends waits, so that the gRPC server can drain

    def register(self, server: grpc.Server) -> None:
        """Lets `server` answer its verbs."""


class EmbeddedShard:
    """Shard `rank` of the run. `SparseClient(own=shard.servicer)` calls it without a socket."""

    def __init__(
        self,
        run: Run,
        rank: int,
        registry: prometheus_client.CollectorRegistry,
        shard_threads: int = 0,
        standby_mb: int = 0,
    ) -> None:
        """`shard_threads` and `standby_mb` as in MemberConfig. Raises InvalidInput for a bad spec,
        a rank there is not, or a number out of bounds.
        """
        assignment = Assignment.of_sparse(run, rank, shard_threads, standby_mb)
        self.role, self.threads = Role.SPARSE_PS, assignment.threads
        self.servicer = SparseServicer(assignment, Storage(), SparseMetrics(registry))
        self.laden = sparse_verbs(self.servicer)
        self.status: Callable[[], dict[str, Any]] = self.servicer.status
        self.close: Callable[[], None] = self.servicer.close

    def register(self, server: grpc.Server) -> None:
        """See Embedded."""
        ps_pb2_grpc.add_SparsePsServicer_to_server(self.servicer, server)


class EmbeddedBlock:
    """Block `rank` of the run. `DenseClient(own=block.servicer)` calls it without a socket."""

    def __init__(self, run: Run, rank: int, registry: prometheus_client.CollectorRegistry) -> None:
        """Raises InvalidInput for a bad spec or a rank there is not."""
        assignment = Assignment.of_dense(run, rank)
        self.role, self.threads = Role.DENSE_PS, assignment.threads
        self.servicer = DenseServicer(assignment, Storage(), DenseMetrics(registry))
        self.laden = dense_verbs(self.servicer)
        self.status: Callable[[], dict[str, Any]] = self.servicer.status
        self.close: Callable[[], None] = self.servicer.close

    def register(self, server: grpc.Server) -> None:
        """See Embedded."""
        ps_pb2_grpc.add_DensePsServicer_to_server(self.servicer, server)
