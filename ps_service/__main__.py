"""`python -m ps_service sparse|dense`: one parameter server of a job. Wiring only."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable

import grpc

from ps_service.server.assignment import Assignment
from ps_service.server.dense import DenseServicer
from ps_service.server.laden import dense_verbs, sparse_verbs
from ps_service.server.metrics import DenseMetrics, SparseMetrics
from ps_service.server.replacements import Replacements
from ps_service.server.sparse import SparseServicer
from services.kit import member, memory, rpc
from services.kit.discovery import Phase, Role
from services.kit.member import MemberProcess
from services.kit.rpc_answer import LadenVerbs
from services.kit.storage import Storage
from services.wire import ps_pb2_grpc

DRAIN_SECONDS = 5.0


def serve_sparse(process: MemberProcess, stop: threading.Event) -> None:
    """Serves one shard until `stop`."""
    settings = process.settings
    assignment = Assignment.of_sparse(
        process.run, settings.rank, settings.shard_threads, settings.standby_mb
    )
    servicer = SparseServicer(assignment, Storage(), SparseMetrics(process.metrics))
    _serve(
        process,
        stop,
        assignment,
        lambda server: ps_pb2_grpc.add_SparsePsServicer_to_server(servicer, server),
        servicer,
        sparse_verbs(servicer),
    )


def serve_dense(process: MemberProcess, stop: threading.Event) -> None:
    """Serves one block until `stop`."""
    assignment = Assignment.of_dense(process.run, process.settings.rank)
    servicer = DenseServicer(assignment, Storage(), DenseMetrics(process.metrics))
    _serve(
        process,
        stop,
        assignment,
        lambda server: ps_pb2_grpc.add_DensePsServicer_to_server(servicer, server),
        servicer,
        dense_verbs(servicer),
    )


def _serve(
    process: MemberProcess,
    stop: threading.Event,
    assignment: Assignment,
    register: Callable[[grpc.Server], None],
    servicer: SparseServicer | DenseServicer,
    laden: LadenVerbs,
) -> None:
    server = rpc.serve(
        register,
        host=process.settings.host,
        port=process.settings.port,
        registry=process.metrics,
        threads=assignment.threads,
        tls=process.tls,
        traces=process.traces,
        laden=laden,
    )
    process.update(address=server.address)
    memory.settle_objects()
    run = process.run
    with Replacements(lambda: process.registry.run(run.job), run.generation, servicer.expel):
        process.announce(Phase.READY, servicer.status)
        stop.wait()
    servicer.close()
    server.drain(DRAIN_SECONDS)


def main() -> None:
    """Reads the role from the command line and runs it."""
    parser = argparse.ArgumentParser(prog="python -m ps_service", description=__doc__)
    parser.add_argument("role", choices=("sparse", "dense"), help="which parameter server to run")
    if parser.parse_args().role == "sparse":
        member.main(Role.SPARSE_PS, serve_sparse)
    else:
        member.main(Role.DENSE_PS, serve_dense)


if __name__ == "__main__":
    main()
