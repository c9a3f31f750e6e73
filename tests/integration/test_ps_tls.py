"""A real parameter-server process with certificates takes nobody's calls but its peers'."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import redis

from gateway.compile import Surroundings, make_run, processes
from gateway.record import new_record
from ps_service import codec
from ps_service.client.sparse import SparseClient
from services.api import spec as jobspec
from services.kit import config, rpc
from services.kit.bypass import Bypass, Closed
from services.kit.discovery import Registry, Role
from services.kit.errors import Unavailable
from services.kit.tls import Tls
from services.wire import ps_pb2, ps_pb2_grpc
from tests.data import ROOT
from tests.fixtures.certificates import Authority
from tests.fixtures.ps_batches import TABLES

SPEC = {
    "name": "secret",
    "model": {"name": "lr"},
    "data": {"source": "synthetic://criteo"},
    "features": {"sparse": {"C1": {"dim": 4}}},
}


def test_a_process_gets_its_certificates_from_the_gateway_and_insists_on_them(
    redis_db: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    authority = Authority()
    spec = jobspec.validate(SPEC)
    run = make_run(new_record(spec, 1.0), spec)
    registry = Registry(redis_db)
    registry.publish_run(run)
    settings = authority.issue(tmp_path / "members", "sparse-ps")
    around = Surroundings(redis_url, "127.0.0.1", "info", settings)
    wanted = next(p for p in processes(run, spec, around) if p.role == Role.SPARSE_PS)
    process = subprocess.Popen(
        [sys.executable, "-m", wanted.module, *wanted.arguments],
        env={**config.inherited(), **wanted.env},
        cwd=ROOT,
    )
    try:
        (member,) = registry.wait_members(
            run.job, run.generation, Role.SPARSE_PS, 1, 30, threading.Event()
        )
        caller: dict[str, Any] = {"generation": run.generation, "epoch": run.epoch, "rank": 0}
        with rpc.connect(member.address) as stranger, pytest.raises(Unavailable):
            stub, nothing = ps_pb2_grpc.SparsePsStub(stranger), ps_pb2.SparseConfigureRequest()
            rpc.call(stub.Configure, nothing, peer="sparse-ps", timeout=1.0)
        peer = Tls(authority.issue(tmp_path / "trainer", "trainer"))
        with SparseClient([member.address], **caller, timeout=10.0, tls=peer) as known:
            assert not known.has_bypass(0), "mTLS is for everybody"
            with pytest.raises(Closed):
                Bypass(member.address, codec.room)
            assert known.configure(TABLES, 0) == 0
    finally:
        process.kill()
        process.wait(10)
