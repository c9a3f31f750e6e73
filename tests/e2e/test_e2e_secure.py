"""A whole job between processes with certificates, and what its logs and traces tell."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509

from embermesh.client import Client
from embermesh.cluster import LocalCluster
from services.api.views import JobState, JobView
from services.kit import config, rpc
from services.kit.errors import Unavailable
from services.kit.tls import TlsConfig
from services.kit.tracing import TracingConfig
from services.wire import ps_pb2, ps_pb2_grpc
from tests.e2e.waiting import until
from tests.fixtures.certificates import Authority
from tests.fixtures.otlp_receiver import Receiver, Seen, receiving
from tests.fixtures.ports import find_free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
Spec = dict[str, Any]
AUTHORITY = Authority()


@pytest.fixture(scope="module")
def receiver() -> Iterator[tuple[Receiver, str]]:
    with receiving() as found:
        yield found


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> TlsConfig:
    return AUTHORITY.issue(tmp_path_factory.mktemp("tls"), "first")


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory,
    receiver: tuple[Receiver, str],
    certificates: TlsConfig,
) -> Iterator[LocalCluster]:
    """As `embermesh up` starts it where the environment names certificates and a receiver."""
    otlp = TracingConfig(receiver[1], step_every=20)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**config.environment(certificates), **config.environment(otlp)}.items():
            patch.setenv(name, value)
        cluster = LocalCluster(tmp_path_factory.mktemp("cluster"))
        cluster.up(port=find_free_port())
        yield cluster
        cluster.down()


@pytest.fixture(scope="module")
def job(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobView]:
    """A job that has trained a while and goes on for longer than the tests."""
    state = cluster.state()
    assert state is not None
    spec: Spec = {
        "name": "secure",
        "model": {"name": "lr"},
        "data": {"source": "synthetic://criteo?rows=100000000"},
        "features": {"dense": "I1..I13", "sparse": {"C1..C3": {"dim": 4, "encode": "id"}}},
        "training": {"mode": "hybrid", "batch_size": 128},
        "resources": {"sparse_ps": 1, "dense_ps": 1, "trainers": 1},
        "checkpoint": {"to": f"file://{tmp_path_factory.mktemp('checkpoints')}"},
    }
    with Client(state.url) as client:
        job = client.submit(spec).id
        yield trained(client, job, 5_000)
        client.cancel(job)
        assert client.wait(job, 60).state == JobState.CANCELLED


def trained(client: Client, job: str, samples: int) -> JobView:
    """The job once it has trained so many rows and still goes on."""

    def enough() -> JobView | None:
        view = client.get(job)
        assert not view.state.final, f"{view.state} too early: {view.error}"
        return view if view.progress.samples >= samples else None

    return until(enough, seconds=90, what=f"{samples} samples")


def test_one_request_is_one_trace_and_one_id_in_all_logs(
    cluster: LocalCluster, client: Client, receiver: tuple[Receiver, str], job: JobView
) -> None:
    path = f"/v1/jobs/{job.id}:checkpoint"
    answer = client.request("POST", path, headers={"X-Request-Id": "ask-42"})
    assert answer.headers["X-Request-Id"] == "ask-42"

    def arrived() -> list[Seen] | None:
        traces = {s.trace for s in receiver[0].named("POST /v1/jobs/{job}:checkpoint")}
        spans = [s for s in receiver[0].spans if s.trace in traces]
        return spans if sum(s.name.endswith("/Snapshot") for s in spans) == 4 else None

    spans = until(arrived, seconds=20, what="the spans of the request")
    chain = [next(s for s in spans if (s.name, s.service) == SNAPSHOT)]
    by_id = {span.id: span for span in spans}
    while chain[-1].parent:
        chain.append(by_id[chain[-1].parent])
    assert [(s.name, s.service.removeprefix("embermesh-")) for s in chain] == [
        ("SparsePs/Snapshot", "sparse-ps"),
        ("SparsePs/Snapshot", "checkpoint"),
        ("write", "checkpoint"),
        ("checkpoint", "checkpoint"),
        ("Checkpoint/Trigger", "checkpoint"),
        ("Checkpoint/Trigger", "gateway"),
        ("POST /v1/jobs/{job}:checkpoint", "gateway"),
    ]
    phases = [s.name for s in spans if by_id.get(s.parent, s).name == "checkpoint"]
    assert sorted(phases) == ["begin", "manifest", "pause", "resume", "retain", "write"]
    assert not any(s.failed for s in spans)
    assert chain[3].attributes["embermesh.job"] == job.id

    places = cluster.folder / "jobs" / job.id / "1"
    logs = [cluster.folder / "logs" / f"{name}.log" for name in ("gateway", "checkpoint")]
    logs += [places / f"{name}-0.log" for name in ("sparse-ps", "dense-ps", "trainer")]
    for log in logs:
        about = [line for line in lines(log) if line.get("request_id") == "ask-42"]
        assert about, f"{log.name} says nothing of the request"
        assert {line["trace_id"] for line in about} == {chain[0].trace}


SNAPSHOT = ("SparsePs/Snapshot", "embermesh-sparse-ps")


def test_a_trainers_lines_say_who_and_where_and_its_steps_are_sampled(
    cluster: LocalCluster, client: Client, receiver: tuple[Receiver, str], job: JobView
) -> None:
    client.checkpoint(job.id)
    told = lines(cluster.folder / "jobs" / job.id / "1" / "trainer-0.log")
    place = {"job": job.id, "role": "trainer", "rank": 0, "generation": 1, "incarnation": 0}
    assert all(place.items() <= line.items() for line in told if "logger" in line)
    assert max(line.get("step", 0) for line in told) > 0

    def stepped() -> list[Seen] | None:
        mine = [s for s in receiver[0].spans if s.attributes.get("job") == job.id]
        return mine if sum(s.name == "push" for s in mine) > 2 else None

    spans = until(stepped, seconds=20, what="spans of steps")
    steps = {s.id: s for s in spans if s.name == "step" and "embermesh.step" in s.attributes}
    assert steps and all(s.attributes["embermesh.step"] % 20 == 0 for s in steps.values())
    below = {s.name for s in spans if s.parent in steps}
    assert {"pull", "step", "push"} <= below
    pushes = [s for s in receiver[0].named("SparsePs/Push") if s.service == "embermesh-sparse-ps"]
    assert pushes, "the servers' part of a sampled step belongs to it"
    kinds = {a for s in receiver[0].named("reconcile") for a in s.attributes["embermesh.actions"]}
    assert "start" in kinds


def test_a_job_with_certificates_trains_through_a_rotation_and_shuts_strangers_out(
    cluster: LocalCluster, client: Client, certificates: TlsConfig, job: JobView
) -> None:
    members = {m.role: m.address for m in client.get(job.id).members}
    assert sorted(members) == ["dense-ps", "sparse-ps", "trainer"]
    for role, address in members.items():
        with rpc.connect(address) as stranger, pytest.raises(Unavailable):
            stub = ps_pb2_grpc.SparsePsStub(stranger)  # nobody is asked which verb it is
            rpc.call(stub.Stats, ps_pb2.StatsRequest(), peer=role, timeout=1.0)
    before = {role: served_serial(certificates, a) for role, a in members.items()}
    assert set(before.values()) == {serial(Path(certificates.cert).read_bytes())}
    first = client.checkpoint(job.id)

    AUTHORITY.issue(Path(certificates.cert).parent, "second", days=20)
    renewed = serial(Path(certificates.cert).read_bytes())
    for address in members.values():
        until(
            lambda a=address: served_serial(certificates, a) == renewed,  # type: ignore[misc]
            seconds=10,
            what=f"the new certificate at {address}",
        )
    end = x509.load_pem_x509_certificate(Path(certificates.cert).read_bytes()).not_valid_after_utc
    state = cluster.state()
    assert state is not None
    listed = httpx.get(f"{state.url}/v1/services/prometheus", trust_env=False).json()
    pages = [t for entry in listed if entry["labels"]["job"] == job.id for t in entry["targets"]]
    pages += [f"127.0.0.1:{port}" for port in (state.port, state.checkpoint_metrics_port)]
    assert len(pages) == 5
    assert {shown_end(address) for address in pages} == {end.timestamp()}
    second = client.checkpoint(job.id)  # new channels, from the gateway on
    assert second.samples > first.samples
    after = trained(client, job.id, second.samples + 2_000)
    assert (after.generation, after.restarts, after.state) == (1, 0, JobState.RUNNING)
    assert {m.role: m.address for m in after.members} == members, "nobody was restarted"


def test_a_scaling_and_its_checkpoint_are_one_trace_and_one_request(
    cluster: LocalCluster, client: Client, receiver: tuple[Receiver, str], job: JobView
) -> None:
    """The last test: the job goes on as its next generation."""
    path, headers = f"/v1/jobs/{job.id}:scale", {"X-Request-Id": "ask-43"}
    client.request("POST", path, json={"trainers": 2}, headers=headers)

    def arrived() -> list[Seen] | None:
        traces = {s.trace for s in receiver[0].named("POST /v1/jobs/{job}:scale")}
        spans = [s for s in receiver[0].spans if s.trace in traces]
        return spans if any(s.name == "manifest" for s in spans) else None

    spans = until(arrived, seconds=60, what="the checkpoint in the trace of the scaling")
    by_id = {span.id: span for span in spans}
    names, at = [], next(s for s in spans if s.name == "checkpoint")
    while at.parent:
        at = by_id[at.parent]
        names.append(at.name)
    assert names == [
        "Checkpoint/Trigger",
        "Checkpoint/Trigger",
        "reconcile",
        "POST /v1/jobs/{job}:scale",
    ]
    log = cluster.folder / "logs" / "checkpoint.log"
    assert any(line.get("request_id") == "ask-43" for line in lines(log))


def shown_end(address: str) -> float:
    """When the process's own certificate ends, as its metrics say."""
    text = httpx.get(f"http://{address}/metrics", trust_env=False, timeout=10).text
    name = 'embermesh_tls_certificate_expiry_timestamp_seconds{certificate="own"} '
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    return float(line.removeprefix(name))


def lines(log: Path) -> list[dict[str, Any]]:
    """The JSON lines of a log; libraries write others beside them."""
    texts = log.read_text().splitlines()
    return [json.loads(text) for text in texts if text.startswith("{")]


def serial(pem: bytes) -> int:
    return x509.load_pem_x509_certificate(pem).serial_number


def served_serial(mine: TlsConfig, address: str) -> int:
    """Serial number of the certificate that the server shows to a peer."""
    context = ssl.create_default_context(cafile=mine.ca)
    context.load_cert_chain(mine.cert, mine.key)
    context.set_alpn_protocols(["h2"])
    host, port = address.rsplit(":", 1)
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=mine.name) as wrapped,
    ):
        shown = wrapped.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number
