"""Errors, deadlines and retries over real gRPC."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import prometheus_client
import pytest

from services.kit import errors, rpc
from services.wire import checkpoint_pb2, checkpoint_pb2_grpc
from tests.fixtures.ports import LOOPBACK, find_free_port

List = checkpoint_pb2.ListRequest


class Echo(checkpoint_pb2_grpc.CheckpointServicer):
    """Runs `body` for each List; answers with one checkpoint that bears the job's name."""

    def __init__(self) -> None:
        self.calls = 0
        self.body: Callable[[int], None] = lambda _: None

    def Trigger(
        self, request: checkpoint_pb2.TriggerRequest, context: grpc.ServicerContext
    ) -> checkpoint_pb2.ManifestRef:
        raise NotImplementedError("no Trigger here")

    def List(
        self, request: checkpoint_pb2.ListRequest, context: grpc.ServicerContext
    ) -> checkpoint_pb2.ListReply:
        self.calls += 1
        self.body(self.calls)
        return checkpoint_pb2.ListReply(checkpoints=[checkpoint_pb2.ManifestRef(id=request.job)])


class Peer:
    """A served Echo and a stub for it."""

    def __init__(self, port: int = 0) -> None:
        self.echo, self.registry = Echo(), prometheus_client.CollectorRegistry()
        self.server = rpc.serve(self._register, host=LOOPBACK, port=port, registry=self.registry)
        self.channel = rpc.connect(self.server.address)
        self.stub = checkpoint_pb2_grpc.CheckpointStub(self.channel)

    def _register(self, server: grpc.Server) -> None:
        checkpoint_pb2_grpc.add_CheckpointServicer_to_server(self.echo, server)

    def ask(self, name: str = "x", timeout: float = 5, stop: threading.Event | None = None) -> str:
        reply = rpc.call(self.stub.List, List(job=name), peer="echo", timeout=timeout, stop=stop)
        return reply.checkpoints[0].id

    def call(self, name: str) -> rpc.Call[checkpoint_pb2.ListReply]:
        return rpc.Call(self.stub.List, List(job=name), f"echo {name}")

    def close(self) -> None:
        self.channel.close()
        self.server.drain(0)


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture
def peers() -> Iterator[list[Peer]]:
    peers = [Peer() for _ in range(3)]
    yield peers
    for peer in peers:
        peer.close()


def raising(error: Exception) -> Callable[[int], None]:
    def body(_: int) -> None:
        raise error

    return body


def waiting(for_: threading.Event | threading.Barrier) -> Callable[[int], None]:
    def body(_: int) -> None:
        for_.wait(5)

    return body


FAMILY = [
    errors.InvalidInput,
    errors.NotFound,
    errors.Conflict,
    errors.Damaged,
    errors.DeadlineExceeded,
    errors.EmbermeshError,
]


@pytest.mark.parametrize("kind", FAMILY)
def test_an_error_arrives_as_its_class(peer: Peer, kind: type[errors.EmbermeshError]) -> None:
    peer.echo.body = raising(kind("batch_size: 0 is below 1"))
    with pytest.raises(errors.EmbermeshError, match="echo: batch_size: 0 is below 1") as caught:
        peer.ask()
    assert type(caught.value) is kind
    assert peer.echo.calls == 1  # none of these is retried
    labels = {"service": "Checkpoint", "verb": "List", "code": kind.code.name}
    assert peer.registry.get_sample_value("embermesh_rpc_total", labels) == 1


def test_a_bug_is_a_status_and_the_server_lives_on(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    peer.echo.body = raising(KeyError("rank"))
    with pytest.raises(errors.EmbermeshError, match="KeyError: 'rank'"):
        peer.ask()
    assert "Checkpoint/List failed" in caplog.text
    peer.echo.body = lambda _: None
    assert peer.ask("still there") == "still there"
    labels = {"service": "Checkpoint", "verb": "List"}
    assert peer.registry.get_sample_value("embermesh_rpc_seconds_count", labels) == 2


def test_a_long_message_keeps_its_class(peer: Peer) -> None:
    peer.echo.body = raising(errors.InvalidInput("field: " + "ü" * 100_000))
    with pytest.raises(errors.InvalidInput, match="field: ü") as caught:
        peer.ask()
    assert len(str(caught.value)) <= rpc.MAX_DETAILS + 10


def test_unavailable_is_retried_until_it_works(peer: Peer) -> None:
    def body(call: int) -> None:
        if call < 4:
            raise errors.Unavailable("warming up")

    peer.echo.body = body
    assert peer.ask("at last") == "at last"
    assert peer.echo.calls == 4


def test_retries_end_at_the_deadline(peer: Peer) -> None:
    peer.echo.body = raising(errors.Unavailable("never"))
    start = time.monotonic()
    with pytest.raises(errors.Unavailable, match="echo: never"):
        peer.ask(timeout=0.5)
    assert time.monotonic() - start < 1.5
    assert peer.echo.calls > 1


def test_a_call_that_hangs_ends_at_its_deadline(peer: Peer) -> None:
    release = threading.Event()
    peer.echo.body = waiting(release)
    with pytest.raises(errors.DeadlineExceeded, match=r"echo: no answer within 0\.3 s"):
        peer.ask(timeout=0.3)
    release.set()


def test_stop_ends_the_retries(peer: Peer) -> None:
    peer.echo.body = raising(errors.Unavailable("never"))
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    start = time.monotonic()
    with pytest.raises(errors.Unavailable, match="stopping"):
        peer.ask(timeout=30, stop=stop)
    assert time.monotonic() - start < 5


def test_nobody_there_is_unavailable_and_a_late_server_is_found() -> None:
    port = find_free_port()
    stub = checkpoint_pb2_grpc.CheckpointStub(channel := rpc.connect(f"{LOOPBACK}:{port}"))
    with pytest.raises(errors.Unavailable, match="echo: "):
        rpc.call(stub.List, List(), peer="echo", timeout=0.3)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(rpc.call, stub.List, List(job="late"), peer="echo", timeout=10)
        peer = Peer(port)
        assert late.result(10).checkpoints[0].id == "late"
    channel.close()
    peer.close()


def test_a_proxy_setting_does_not_stand_between(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://{LOOPBACK}:1")
    stub = checkpoint_pb2_grpc.CheckpointStub(channel := rpc.connect(peer.server.address))
    assert rpc.call(stub.List, List(job="x"), peer="echo", timeout=3).checkpoints[0].id == "x"
    channel.close()


def test_a_port_in_use_is_named(peer: Peer) -> None:
    port = int(peer.server.address.rsplit(":", 1)[1])
    with pytest.raises(errors.Unavailable, match=f"can't listen on {LOOPBACK}:{port}.* in use"):
        Peer(port)


def test_draining_lets_a_running_call_finish_and_refuses_new_ones(peer: Peer) -> None:
    entered, release = threading.Event(), threading.Event()

    def body(number: int) -> None:
        entered.set()
        if number == 1:  # one that comes before the drain begins is answered
            release.wait(5)

    peer.echo.body = body
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(peer.ask, "first")
        assert entered.wait(5)
        drained = pool.submit(peer.server.drain, 5)
        with pytest.raises(errors.Unavailable):
            while True:  # until the server has begun to drain
                peer.ask("second", timeout=0.2)
        release.set()
        assert running.result(5) == "first"
        drained.result(5)


def test_a_call_cut_off_by_the_end_of_the_drain_is_unavailable(peer: Peer) -> None:
    entered, release = threading.Event(), threading.Event()

    def body(_: int) -> None:
        entered.set()
        release.wait(5)

    peer.echo.body = body
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(peer.ask, "x", 0.8)
        assert entered.wait(5)
        peer.server.drain(0.1)
        with pytest.raises(errors.Unavailable):
            running.result(5)
        release.set()


def test_call_all_answers_in_order(peers: list[Peer]) -> None:
    peers[0].echo.body = lambda _: time.sleep(0.1)
    replies = rpc.call_all([p.call(str(i)) for i, p in enumerate(peers)], timeout=5)
    assert [reply.checkpoints[0].id for reply in replies] == ["0", "1", "2"]
    assert rpc.call_all([], timeout=1) == []


def test_call_all_runs_at_the_same_time(peers: list[Peer]) -> None:
    """Each answers only when all were asked: one after the other would end at the deadline."""
    barrier = threading.Barrier(3)
    for peer in peers:
        peer.echo.body = waiting(barrier)
    assert len(rpc.call_all([p.call("x") for p in peers], timeout=5)) == 3


def test_call_all_retries_one_while_the_others_wait_for_it(peers: list[Peer]) -> None:
    barrier = threading.Barrier(3)

    def flaky(call: int) -> None:
        if call == 1:
            raise errors.Unavailable("warming up")
        barrier.wait(5)

    for peer in peers[:2]:
        peer.echo.body = waiting(barrier)
    peers[2].echo.body = flaky
    assert len(rpc.call_all([p.call("x") for p in peers], timeout=4)) == 3


def test_call_all_raises_the_first_failure_at_once(peers: list[Peer]) -> None:
    release = threading.Event()
    peers[0].echo.body = waiting(release)
    peers[1].echo.body = raising(errors.Damaged("sparse-001.emb: bad checksum"))
    start = time.monotonic()
    with pytest.raises(errors.Damaged, match=r"echo 1: sparse-001\.emb: bad checksum"):
        rpc.call_all([p.call(str(i)) for i, p in enumerate(peers)], timeout=5)
    assert time.monotonic() - start < 2
    release.set()


def test_call_all_without_retry_takes_unavailable_at_its_word(peers: list[Peer]) -> None:
    peers[1].echo.body = raising(errors.Unavailable("No space left on device"))
    with pytest.raises(errors.Unavailable, match="echo 1: No space left"):
        rpc.call_all([p.call(str(i)) for i, p in enumerate(peers)], timeout=5, retry=False)
    assert peers[1].echo.calls == 1


def test_call_all_ends_at_its_deadline_and_at_stop(peers: list[Peer]) -> None:
    release, stop = threading.Event(), threading.Event()
    peers[2].echo.body = waiting(release)
    with pytest.raises(errors.DeadlineExceeded, match=r"echo 2: no answer within 0\.3 s"):
        rpc.call_all([p.call(str(i)) for i, p in enumerate(peers)], timeout=0.3)
    threading.Timer(0.1, stop.set).start()
    with pytest.raises(errors.Unavailable, match=r"echo 2: given up .*stopping"):
        rpc.call_all([p.call(str(i)) for i, p in enumerate(peers)], timeout=5, stop=stop)
    release.set()


def test_call_each_tells_every_outcome(peers: list[Peer]) -> None:
    peers[0].echo.body = raising(errors.Conflict("not now"))
    peers[2].server.drain(0)
    outcomes = rpc.call_each([p.call(str(i)) for i, p in enumerate(peers)], timeout=0.5)
    assert isinstance(outcomes[0], errors.Conflict)
    assert isinstance(outcomes[1], checkpoint_pb2.ListReply)
    assert isinstance(outcomes[2], errors.Unavailable)


def test_the_family_is_consistent() -> None:
    codes = [kind.code for kind in (*FAMILY, errors.Unavailable)]
    assert len(set(codes)) == len(codes)
    permanent = {k for k in (*FAMILY, errors.Unavailable) if k.permanent}
    assert permanent == {errors.InvalidInput, errors.NotFound, errors.Damaged}
