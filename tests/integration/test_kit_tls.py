"""Mutual TLS with real certificates: who gets through, what a refusal says, and rotation."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import prometheus_client
import pytest

from services.kit import config, rpc, tls
from services.kit.errors import DeadlineExceeded, InvalidInput, Unavailable
from services.kit.tls import Tls, TlsConfig
from services.wire import checkpoint_pb2, checkpoint_pb2_grpc
from tests.fixtures.certificates import Authority
from tests.integration.gateway_harness import wait_for

LOOPBACK = "127.0.0.1"


class Who(checkpoint_pb2_grpc.CheckpointServicer):
    """Answers with the common name of who asks, and waits where it is told to."""

    def __init__(self) -> None:
        self.hold = threading.Event()
        self.held = threading.Event()

    def Trigger(
        self, request: checkpoint_pb2.TriggerRequest, context: grpc.ServicerContext
    ) -> checkpoint_pb2.ManifestRef:
        if request.job == "wait":
            self.held.set()
            assert self.hold.wait(20)
        auth: Any = context.auth_context()
        assert auth["security_level"] == [b"TSI_PRIVACY_AND_INTEGRITY"]
        return checkpoint_pb2.ManifestRef(id=auth["x509_common_name"][0].decode())

    def List(
        self, request: checkpoint_pb2.ListRequest, context: grpc.ServicerContext
    ) -> checkpoint_pb2.ListReply:
        return checkpoint_pb2.ListReply()


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


class Served:
    """A server with certificates in `folder`."""

    def __init__(self, authority: Authority, folder: Path) -> None:
        self.servicer, self.folder = Who(), folder
        self.server = rpc.serve(
            lambda s: checkpoint_pb2_grpc.add_CheckpointServicer_to_server(self.servicer, s),
            host=LOOPBACK,
            port=0,
            registry=prometheus_client.CollectorRegistry(),
            tls=Tls(authority.issue(folder, "checkpoint")),
        )

    def ask(self, channel: grpc.Channel, job: str = "", timeout: float = 10.0) -> str:
        stub = checkpoint_pb2_grpc.CheckpointStub(channel)
        request = checkpoint_pb2.TriggerRequest(job=job)
        return rpc.call(stub.Trigger, request, peer="checkpoint", timeout=timeout).id


@pytest.fixture
def served(authority: Authority, tmp_path: Path) -> Iterator[Served]:
    served = Served(authority, tmp_path / "server")
    yield served
    served.servicer.hold.set()
    served.server.drain(5)


def test_peers_are_known_to_each_other(
    authority: Authority, served: Served, tmp_path: Path
) -> None:
    settings = authority.issue(tmp_path / "client", "trainer-3")
    with rpc.connect(served.server.address, Tls(settings)) as channel:
        assert served.ask(channel) == "trainer-3"
        stub = checkpoint_pb2_grpc.CheckpointStub(channel)
        calls = [
            rpc.Call(stub.Trigger, checkpoint_pb2.TriggerRequest(), "checkpoint") for _ in range(3)
        ]
        replies = rpc.call_all(calls, timeout=10)
        assert [reply.id for reply in replies] == ["trainer-3"] * 3


@pytest.mark.parametrize("case", ["plain", "other CA", "expired", "trusts another", "wrong name"])
def test_nobody_else_gets_through(
    case: str, authority: Authority, served: Served, tmp_path: Path
) -> None:
    other, folder = Authority("somebody else's CA"), tmp_path / "client"
    certificates = None
    if case == "other CA":
        settings = other.issue(folder, "evil")
        (folder / "ca.pem").write_bytes((served.folder / "ca.pem").read_bytes())
        certificates = Tls(settings)
    elif case == "expired":
        certificates = Tls(authority.issue(folder, "old", days=-1))
    elif case == "trusts another":
        settings = authority.issue(folder, "trainer")
        other.issue(tmp_path / "other", "x")
        (folder / "ca.pem").write_bytes((tmp_path / "other" / "ca.pem").read_bytes())
        certificates = Tls(settings)
    elif case == "wrong name":
        certificates = Tls(authority.issue(folder, "trainer", dns="elsewhere"))
    with (
        rpc.connect(served.server.address, certificates) as channel,
        # The second where the time was up before the last handshake had failed.
        pytest.raises((Unavailable, DeadlineExceeded), match="checkpoint: "),
    ):
        served.ask(channel, timeout=1.0)


def test_a_peer_without_tls_is_not_talked_to(authority: Authority, tmp_path: Path) -> None:
    servicer = Who()
    server = rpc.serve(
        lambda s: checkpoint_pb2_grpc.add_CheckpointServicer_to_server(servicer, s),
        host=LOOPBACK,
        port=0,
        registry=prometheus_client.CollectorRegistry(),
    )
    settings = authority.issue(tmp_path, "trainer")
    with rpc.connect(server.address, Tls(settings)) as channel, pytest.raises(Unavailable):
        rpc.call(
            checkpoint_pb2_grpc.CheckpointStub(channel).Trigger,
            checkpoint_pb2.TriggerRequest(),
            peer="checkpoint",
            timeout=1.0,
        )
    server.drain(0)


def test_certificates_are_changed_under_running_calls(
    authority: Authority, served: Served, tmp_path: Path
) -> None:
    folder = tmp_path / "client"
    settings = authority.issue(folder, "trainer-old")
    with rpc.connect(served.server.address, Tls(settings)) as channel:
        assert served.ask(channel) == "trainer-old"
        slow: list[str] = []
        thread = threading.Thread(target=lambda: slow.append(served.ask(channel, "wait", 20)))
        thread.start()
        assert served.servicer.held.wait(10)
        authority.issue(folder, "trainer-new")
        wait_for(lambda: served.ask(channel) == "trainer-new")
        served.servicer.hold.set()
        thread.join()
        assert slow == ["trainer-old"]  # it was not cut off


def test_a_new_authority_takes_over_without_a_restart(served: Served, tmp_path: Path) -> None:
    successor, folder = Authority("the next CA"), tmp_path / "client"
    successor.issue(served.folder, "checkpoint")
    settings = successor.issue(folder, "trainer")
    with rpc.connect(served.server.address, Tls(settings)) as channel:
        assert served.ask(channel) == "trainer"


def test_half_a_rotation_changes_nothing(
    authority: Authority, served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "client"
    certificates = Tls(authority.issue(folder, "trainer"))
    before = certificates.current()
    key, cert = (folder / "key.pem").read_bytes(), (folder / "cert.pem").read_bytes()
    authority.issue(folder, "next")
    new_key = (folder / "key.pem").read_bytes()
    (folder / "key.pem").write_bytes(key)  # the certificate came first
    assert certificates.current() is before
    assert "not read again yet" in caplog.text
    (folder / "cert.pem").unlink()
    assert certificates.current() is before
    (folder / "cert.pem").write_bytes(cert)
    (folder / "key.pem").write_bytes(new_key)
    assert certificates.current() is before
    (folder / "key.pem").write_bytes(key)
    assert certificates.current().cert == cert
    # The same at the server: a file that is no PEM leaves it serving.
    (served.folder / "key.pem").write_text("not yet")
    with rpc.connect(served.server.address, certificates) as channel:
        assert served.ask(channel) == "trainer"


def test_settings_without_their_files_are_refused(authority: Authority, tmp_path: Path) -> None:
    assert tls.load({}) is None
    with pytest.raises(InvalidInput, match="EMBERMESH_TLS_CA, CERT and KEY go together"):
        tls.load({"EMBERMESH_TLS_CA": "x"})
    settings = authority.issue(tmp_path, "trainer")
    loaded = tls.load(config.environment(settings))
    assert loaded is not None
    assert loaded.settings == settings
    Path(settings.cert).write_text("nothing")
    with pytest.raises(InvalidInput, match=r"cert\.pem"):
        Tls(settings)
    with pytest.raises(InvalidInput, match="No such file"):
        Tls(TlsConfig(ca="/no/ca", cert="/no/cert", key="/no/key"))
