"""Calls over a bypass: arrays arrive as they were, errors as their class, and nothing hangs."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import prometheus_client
import pytest

from services.kit import bypass, errors, rpc, trail
from services.kit.bypass import Bypass, Closed
from services.kit.laden import Laden, Method
from services.kit.rpc_answer import LadenVerb, LadenVerbs, joined
from services.kit.rpc_metrics import ClientMetrics
from services.wire import bypass_pb2, checkpoint_pb2
from tests.data import ROOT
from tests.fixtures.ports import LOOPBACK, find_free_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bypasses are Linux's")

Request, Reply = checkpoint_pb2.ListRequest, checkpoint_pb2.ManifestRef
ECHO, KEEP, NONE = (
    Method(f"/test.Echo/{name}", Request, (), Reply, ()) for name in ("Echo", "Keep", "None")
)
NAMES = {"service": "Echo", "verb": "Echo"}


def room(size: int) -> memoryview:
    return memoryview(bytearray(size))


class Peer:
    """A server with a bypass that answers with what it is given, once `body` has run."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self.body: Callable[[checkpoint_pb2.ListRequest], object] = lambda _: None
        self.kept: list[memoryview] = []
        verbs = [
            LadenVerb(ECHO, self._echo, keeps=False),
            LadenVerb(KEEP, self._keep, keeps=True),
        ]
        self.server = rpc.serve(
            lambda _: None,
            host=LOOPBACK,
            port=0,
            registry=self.registry,
            laden=LadenVerbs(verbs, room),
        )
        self.bypass = Bypass(self.server.address, room)

    def ask(
        self, *arrays: bytes, name: str = "x", timeout: float = 5, verb: Method = ECHO
    ) -> Laden:
        laden = Laden(Request(job=name), [memoryview(a) for a in arrays])
        return self.bypass.call(verb, laden, timeout)

    def expect_echo(self, data: bytes) -> None:
        """The server is well."""
        assert [bytes(array) for array in self.ask(data).arrays] == [data]

    def raw(self) -> socket.socket:
        """A connection of its own that has been greeted."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(5)
        connection.connect(bypass.socket_name(self.server.address) or "")
        assert connection.recv(len(bypass.HELLO), socket.MSG_WAITALL) == bypass.HELLO
        return connection

    def close(self) -> None:
        self.bypass.close()
        self.server.drain(0)

    def _echo(self, request: checkpoint_pb2.ListRequest, arrays: list[memoryview]) -> Laden:
        self.body(request)
        return Laden(Reply(id=request.job), list(reversed(arrays)))

    def _keep(self, request: checkpoint_pb2.ListRequest, arrays: list[memoryview]) -> Laden:
        self.kept += arrays
        return Laden(Reply(id=request.job), [])


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


def frame(head: bypass_pb2.BypassRequest | bytes, rest: bytes = b"") -> bytes:
    data = head if isinstance(head, bytes) else head.SerializeToString()
    return len(data).to_bytes(4, "little") + data + rest


def answer(connection: socket.socket) -> bypass_pb2.BypassReply:
    return bypass_pb2.BypassReply.FromString(bypass.receive_head(connection, lambda: None))


@pytest.mark.parametrize("sizes", [(), (0,), (1, 63, 64, 65), (3_000_001, 0, 8)])
def test_arrays_arrive_as_they_were(peer: Peer, sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    for turn in range(3):  # the server's memory is used again
        given = [rng.bytes(size) for size in sizes]
        reply = peer.ask(*given, name=f"turn {turn}")
        assert isinstance(reply.message, Reply) and reply.message.id == f"turn {turn}"
        assert [bytes(a) for a in reply.arrays] == given[::-1]


def test_more_arrays_than_one_write_takes(peer: Peer) -> None:
    given = [bytes([i % 251]) * (i % 7) for i in range(2_000)]
    assert [bytes(a) for a in peer.ask(*given).arrays] == given[::-1]


def test_memory_of_arrays_is_used_again_unless_they_are_kept(peer: Peer) -> None:
    for text in (b"first", b"other"):
        peer.ask(text, verb=KEEP)
    assert [bytes(a) for a in peer.kept] == [b"first", b"other"]


@pytest.mark.parametrize(
    "kind", [errors.InvalidInput, errors.Conflict, errors.Exhausted, errors.EmbermeshError]
)
def test_an_error_arrives_as_its_class(peer: Peer, kind: type[errors.EmbermeshError]) -> None:
    def fail(_: object) -> None:
        raise kind("rank: 7 is above 3")

    peer.body = fail
    with pytest.raises(errors.EmbermeshError, match=r"^rank: 7 is above 3$") as caught:
        peer.ask(b"abc")
    assert type(caught.value) is kind
    labels = {**NAMES, "code": kind.code.name}
    assert peer.registry.get_sample_value("embermesh_rpc_total", labels) == 1


def test_a_bug_is_a_status_and_the_server_lives_on(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise KeyError("rank")

    peer.body = fail
    with pytest.raises(errors.EmbermeshError, match="KeyError: 'rank'"):
        peer.ask()
    assert "Echo/Echo failed" in caplog.text
    peer.body = lambda _: None
    peer.expect_echo(b"still there")
    with pytest.raises(errors.NotFound, match=r"no verb /test.Echo/None on this bypass"):
        peer.ask(b"abc", verb=NONE)
    peer.expect_echo(b"and again")


def test_a_call_ends_at_its_deadline_and_others_go_on(peer: Peer) -> None:
    held = threading.Event()
    peer.body = lambda request: held.wait(20) if request.job == "slow" else None
    began = time.monotonic()
    with pytest.raises(errors.DeadlineExceeded, match=r"no answer within 0\.3 s"):
        peer.ask(name="slow", timeout=0.3)
    assert 0.25 < time.monotonic() - began < 3
    peer.expect_echo(b"abc")
    held.set()


def test_stop_and_close_end_a_wait() -> None:
    peer, held, stop = Peer(), threading.Event(), threading.Event()
    peer.body = lambda _: held.wait(20)
    stopped = Bypass(peer.server.address, room, stop)
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(one.call, ECHO, Laden(Request(), []), 20) for one in (stopped, peer.bypass)
        ]
        time.sleep(0.2)
        stop.set()
        peer.bypass.close()
        for call in calls:
            with pytest.raises(errors.Unavailable, match="stopping"):
                call.result(5)
        held.set()
    stopped.close()
    peer.close()


def test_a_drain_lets_a_call_end_and_refuses_the_next() -> None:
    peer, begun, go_on = Peer(), threading.Event(), threading.Event()

    def wait(_: object) -> None:
        begun.set()
        go_on.wait(10)

    peer.body = wait
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(peer.ask, b"abc")
        assert begun.wait(5)
        draining = pool.submit(peer.server.drain, 10)
        time.sleep(0.2)
        with pytest.raises(errors.Unavailable, match="bypass: "):
            peer.ask(b"too late")
        go_on.set()
        assert bytes(running.result(10).arrays[0]) == b"abc"
        draining.result(10)
    with pytest.raises(Closed):
        Bypass(peer.server.address, room)
    peer.bypass.close()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (frame(b"\xff\xff\xff"), "head: "),
        ((2**30 + 1).to_bytes(4, "little"), "head has 1073741825 bytes, at most 1073741824"),
        (
            frame(bypass_pb2.BypassRequest(method=ECHO.path, arrays=[2**62, 2**62])),
            "arrays have 9223372036854775808 bytes, at most 1073741824",
        ),
    ],
)
def test_a_frame_that_is_none_is_answered_and_ends_its_connection(
    peer: Peer, data: bytes, message: str
) -> None:
    with peer.raw() as connection:
        connection.sendall(data)
        reply = answer(connection)
        assert reply.code == 3 and reply.details.startswith(message)
        assert connection.recv(1) == b""
    peer.expect_echo(b"abc")


def test_a_request_that_cant_be_parsed_names_itself_and_keeps_its_connection(peer: Peer) -> None:
    with peer.raw() as connection:
        for _ in range(2):
            head = bypass_pb2.BypassRequest(method=ECHO.path, message=b"\xff", arrays=[3])
            connection.sendall(frame(head, b"abc" + bytes(61)))
            assert answer(connection).code == 3


def test_random_bytes_and_cut_frames_end_connections_only(peer: Peer) -> None:
    rng = random.Random(5)
    whole = frame(bypass_pb2.BypassRequest(method=ECHO.path, arrays=[100]), bytes(128))
    for turn in range(200):
        with peer.raw() as connection:
            cut = whole[: rng.randrange(len(whole))]
            connection.sendall(cut if turn % 2 else rng.randbytes(rng.randrange(1, 300)))
    peer.expect_echo(b"abc")


def test_both_ends_count_the_same_bytes(peer: Peer) -> None:
    registry = prometheus_client.CollectorRegistry()
    counted = Bypass(peer.server.address, room, metrics=ClientMetrics(registry))
    counted.call(ECHO, Laden(Request(job="abc"), [memoryview(bytes(1_000))]), 5)
    assert registry.get_sample_value("embermesh_rpc_client_bypasses") == 1
    for _ in range(2):
        counted.close()
    assert registry.get_sample_value("embermesh_rpc_client_bypasses") == 0
    for direction, other in (("out", "in"), ("in", "out")):
        here = registry.get_sample_value(
            "embermesh_rpc_client_bytes_total", {**NAMES, "direction": direction}
        )
        there = peer.registry.get_sample_value(
            "embermesh_rpc_bytes_total", {**NAMES, "direction": other}
        )
        assert here == there == 1_005


def test_a_call_carries_its_callers_trail(peer: Peer) -> None:
    seen: list[str] = []
    peer.body = lambda _: seen.append(trail.present().request_id)
    with trail.following(request_id="r-17"):
        peer.ask()
    peer.ask()
    assert seen == ["r-17", ""]


def test_a_taken_name_leaves_grpc_alone(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket(socket.AF_UNIX) as taken:
        port = find_free_port()
        taken.bind(bypass.socket_name(f"{LOOPBACK}:{port}") or "")
        verbs = LadenVerbs([LadenVerb(ECHO, lambda _, a: Laden(Reply(), a), False)], room)
        registry = prometheus_client.CollectorRegistry()
        server = rpc.serve(lambda _: None, host=LOOPBACK, port=port, registry=registry, laden=verbs)
        assert "its calls come by gRPC" in caplog.text
        server.drain(1)


def test_where_there_is_no_bypass() -> None:
    with pytest.raises(Closed):
        Bypass("127.0.0.1:1", room)
    assert bypass.socket_name("h" * 200) is None
    assert joined([]) is None


CONNECT = """
import os, socket, sys
{before}
with socket.socket(socket.AF_UNIX) as connection:
    try:
        connection.connect({name!r})
    except ConnectionRefusedError:
        print("nobody there")
    else:
        print("greeting:", connection.recv(100))
"""


@pytest.mark.parametrize(
    ("wrapper", "before", "seen"),
    [
        ([], "", f"greeting: {bypass.HELLO!r}"),
        ([], "os.setgid(65534); os.setuid(65534)", "greeting: b''"),
        (["unshare", "-n"], "", "nobody there"),
    ],
    ids=["own", "another user", "another network namespace"],
)
def test_only_own_processes_of_this_host_get_a_bypass(
    peer: Peer, wrapper: list[str], before: str, seen: str
) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to become somebody else")
    script = CONNECT.format(before=before, name=bypass.socket_name(peer.server.address))
    done = subprocess.run(
        [*wrapper, sys.executable, "-c", script],
        cwd=ROOT, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    if wrapper and "unshare" in done.stderr:
        pytest.skip(done.stderr)
    assert done.stdout.strip() == seen, done.stderr
    peer.expect_echo(b"abc")


def test_status_numbers_are_those_of_grpc() -> None:
    for status in grpc.StatusCode:
        assert bypass.status_of(bypass.number_of(status)) is status
    assert bypass.status_of(99) is grpc.StatusCode.UNKNOWN
