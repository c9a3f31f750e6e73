"""Request ids and traces over real calls, to a real receiver of OpenTelemetry's protocol."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import grpc
import prometheus_client
import pytest

from services.kit import config, rpc, tracing, trail
from services.kit.errors import Conflict, InvalidInput
from services.kit.telemetry import setup_logging
from services.kit.tracing import OFF, Tracing, TracingConfig
from services.wire import checkpoint_pb2, checkpoint_pb2_grpc
from tests.data import ROOT
from tests.fixtures.otlp_receiver import Receiver, receiving
from tests.fixtures.ports import LOOPBACK, find_free_port


class Relay(checkpoint_pb2_grpc.CheckpointServicer):
    """Passes Trigger on to the next one; the last does what `last` says."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask

    def Trigger(
        self, request: checkpoint_pb2.TriggerRequest, context: grpc.ServicerContext
    ) -> checkpoint_pb2.ManifestRef:
        self._ask()
        return checkpoint_pb2.ManifestRef(id=trail.present().request_id)

    def List(
        self, request: checkpoint_pb2.ListRequest, context: grpc.ServicerContext
    ) -> checkpoint_pb2.ListReply:
        return checkpoint_pb2.ListReply()


def trigger(channel: grpc.Channel, job: str = "a") -> str:
    stub = checkpoint_pb2_grpc.CheckpointStub(channel)
    calls = [rpc.Call(stub.Trigger, checkpoint_pb2.TriggerRequest(job=job), "next")]
    (reply,) = rpc.call_all(calls, timeout=10)
    direct = checkpoint_pb2.TriggerRequest(job=job)
    assert rpc.call(stub.Trigger, direct, peer="next", timeout=10).id == reply.id
    return reply.id


@contextmanager
def served(
    ask: Callable[[], object], callers: Tracing = OFF, traces: Tracing = OFF
) -> Iterator[grpc.Channel]:
    """A channel of a caller, with its tracing, to a server with `traces`."""
    server = rpc.serve(
        lambda s: checkpoint_pb2_grpc.add_CheckpointServicer_to_server(Relay(ask), s),
        host=LOOPBACK,
        port=0,
        registry=prometheus_client.CollectorRegistry(),
        traces=traces,
    )
    try:
        with rpc.connect(server.address, traces=callers) as channel:
            yield channel
    finally:
        server.drain(1)


def test_a_request_id_goes_with_the_calls_into_the_logs_of_who_answers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = logging.root.handlers[:]
    setup_logging("info", service="test")
    try:
        with ExitStack() as stack:
            last = stack.enter_context(served(lambda: None))
            first = stack.enter_context(served(lambda: trigger(last)))
            assert trigger(first) == ""
            assert capsys.readouterr().err == "", "nobody asked for these"
            with trail.following(request_id="r-17"):
                assert trigger(first) == "r-17"
            assert trail.present() == trail.Trail()
    finally:
        logging.root.handlers[:] = before
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert len(lines) == 6, "2 calls of the first, each of which makes 2 of the last"
    assert {line["request_id"] for line in lines} == {"r-17"}
    assert all("answered Checkpoint/Trigger with OK in" in line["message"] for line in lines)
    assert "trace_id" not in lines[0]


def test_a_trail_goes_to_another_thread_only_where_it_is_bound() -> None:
    with ThreadPoolExecutor(1) as pool, trail.following(request_id="r-1"):
        assert pool.submit(trail.present).result() == trail.Trail()
        assert pool.submit(trail.bound(trail.present)).result().request_id == "r-1"


@pytest.fixture
def receiver() -> Iterator[tuple[Receiver, str]]:
    with receiving() as found:
        yield found


def started(endpoint: str, service: str) -> tuple[Tracing, prometheus_client.CollectorRegistry]:
    registry = prometheus_client.CollectorRegistry()
    return tracing.start(TracingConfig(endpoint), service, registry, {"rank": 3}), registry


def test_one_trace_over_three_services(receiver: tuple[Receiver, str]) -> None:
    seen, endpoint = receiver
    (one, registry), (two, _), (three, _) = (started(endpoint, s) for s in ("a", "b", "c"))

    def fail() -> None:
        raise Conflict("not now")

    with ExitStack() as stack:
        last = stack.enter_context(served(fail, two, three))
        first = stack.enter_context(served(lambda: trigger(last), one, two))
        aside = stack.enter_context(served(lambda: None, one, two))
        trigger(aside)  # outside of any span: nothing is traced
        began = time.time_ns()
        with pytest.raises(Conflict), one.span("job", {"n": 1}, since=began):
            trigger(first)
        for part in (one, two, three):
            part.close()
    (root,) = seen.named("job")
    assert (root.parent, root.service, root.start) == ("", "embermesh-a", began)
    assert (root.attributes["n"], root.attributes["rank"]) == (1, 3)
    assert {span.trace for span in seen.spans} == {root.trace}
    by_id = {span.id: span for span in seen.spans}
    chain = [span for span in seen.spans if span.service == "embermesh-c"]
    assert len(chain) == 1
    while chain[-1].parent:
        chain.append(by_id[chain[-1].parent])
    assert [s.service[-1] for s in chain] == ["c", "b", "b", "a", "a"]
    assert [s.name for s in chain[:-1]] == ["Checkpoint/Trigger"] * 4
    assert all(s.failed and s.start <= s.end for s in chain)
    assert chain[1].attributes["rpc.grpc.status_code"] == Conflict.code.value[0]
    sent = registry.get_sample_value("embermesh_trace_spans_total", {"fate": "sent"})
    assert sent == sum(s.service == "embermesh-a" for s in seen.spans) == 2


def test_a_receiver_that_is_away_costs_spans_and_not_the_work() -> None:
    traces, registry = started(f"http://{LOOPBACK}:{find_free_port()}", "a")
    start = time.monotonic()
    for _ in range(100):
        with traces.span("work") as span:
            span.note({"x": 1.5})
            span.rename("done")
    assert time.monotonic() - start < 1
    start = time.monotonic()
    traces.close()
    assert time.monotonic() - start < 5
    assert registry.get_sample_value("embermesh_trace_spans_total", {"fate": "sent"}) is None


def test_where_traces_are_off_opentelemetry_is_not_even_loaded() -> None:
    code = (
        "import sys, prometheus_client\n"
        "import gateway.__main__, ps_service.__main__, services.checkpoint.__main__\n"
        "from services.kit import tracing\n"
        "registry = prometheus_client.CollectorRegistry()\n"
        "traces = tracing.start(tracing.TracingConfig(), 'x', registry)\n"
        "with traces.span('a') as span: span.note({'b': 1})\n"
        "assert not traces.on and traces.outgoing('a', 'b').metadata == ()\n"
        # The SDK itself is loaded by libraries that look whether it is there.
        "ours = ('services.kit.otlp', 'opentelemetry.sdk.trace', 'opentelemetry.exporter')\n"
        "print([name for name in sys.modules if name.startswith(ours)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=config.inherited(), capture_output=True
    )
    assert done.stdout.decode().strip() == "[]", done.stderr.decode()


@pytest.mark.parametrize(
    "endpoint", ["collector:4317", "http://collector", "ftp://a:1", "http://a:x"]
)
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidInput, match="EMBERMESH_OTLP_ENDPOINT='"):
        TracingConfig(endpoint)
    with pytest.raises(InvalidInput, match="EMBERMESH_OTLP_STEP_EVERY=0"):
        TracingConfig(step_every=0)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "services.kit.otlp", None)
    with pytest.raises(InvalidInput, match=r"embermesh\[otel\]"):
        started("http://collector:4317", "a")
