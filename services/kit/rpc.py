"""gRPC in one place: server with error and metric interceptors, channels, calls with deadline.

Handlers raise `services.kit.errors`; callers of `call…` get the same classes back.
Only UNAVAILABLE is retried, and only until the call's deadline: our verbs are idempotent by (rank,
step), so repeating one is safe. Knows no verb by name.
"""

from __future__ import annotations

import dataclasses
import heapq
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, Generic, TypeVar, cast

import grpc
import prometheus_client

from services.kit import errors, rpc_answer, rpc_trail, tracing
from services.kit.bypass_server import BypassServer
from services.kit.net import advertised
from services.kit.rpc_answer import LadenVerbs
from services.kit.rpc_metrics import ClientMetrics, RpcMetrics
from services.kit.tls import Tls
from services.kit.tracing import Tracing

MAX_MESSAGE_BYTES = rpc_answer.MAX_MESSAGE_BYTES
MAX_DETAILS = rpc_answer.MAX_DETAILS
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds between retries
_OPTIONS: Sequence[tuple[str, Any]] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.so_reuseport", 0),  # a second server on the port is an error
    ("grpc.enable_http_proxy", 0),  # peers are reached directly, whatever HTTP_PROXY says
)
_Reply = TypeVar("_Reply")


class Server:
    """A started gRPC server and the address others reach it at."""

    def __init__(
        self, server: grpc.Server, address: str, bypass: BypassServer | None = None
    ) -> None:
        self._server, self._bypass = server, bypass
        self.address = address

    def drain(self, seconds: float) -> None:
        """Refuses new calls, lets running ones finish for at most `seconds`."""
        stopped = self._server.stop(grace=seconds)
        if self._bypass is not None:
            self._bypass.drain(seconds)
        stopped.wait(seconds + 1)


def serve(
    register: Callable[[grpc.Server], None],
    *,
    host: str,
    port: int,
    registry: prometheus_client.CollectorRegistry,
    threads: int = 16,
    tls: Tls | None = None,
    traces: Tracing = tracing.OFF,
    laden: LadenVerbs | None = None,
    bypass: bool = True,
) -> Server:
    """Starts a server on host:port (0 = a free port); `register` adds the servicers. With `tls` it
    takes calls of peers only; `traces` gets a span of every call that brings a trace. The verbs of
    `laden`, which `register` adds too, are answered with their arrays beside the messages, and over
    a bypass as well unless there is `tls`, for whoever wants proof of who calls wants it of all, or
    no `bypass`.

    `threads` bounds the calls in progress: a server whose verbs wait for all trainers needs more of
    them than there are trainers. Raises Unavailable when the port is in use.
    """
    answering = rpc_answer.Answering(RpcMetrics(registry), traces)
    server = grpc.server(
        futures.ThreadPoolExecutor(threads, thread_name_prefix="rpc"),
        options=_OPTIONS,
        interceptors=[rpc_answer.Interceptor(answering, laden)],
    )
    register(server)
    try:
        bound = (
            server.add_insecure_port(f"{host}:{port}")
            if tls is None
            else server.add_secure_port(f"{host}:{port}", tls.server_credentials())
        )
    except RuntimeError as error:
        reason = "the port is in use, or the address is not this machine's"
        raise errors.Unavailable(f"can't listen on {host}:{port}: {reason}") from error
    server.start()
    address = f"{advertised(host)}:{bound}"
    opens = bypass and tls is None
    beside = BypassServer.open(address, laden, answering) if laden and opens else None
    return Server(server, address, beside)


def connect(
    address: str,
    tls: Tls | None = None,
    metrics: ClientMetrics | None = None,
    traces: Tracing | None = None,
) -> grpc.Channel:
    """A channel to `address`; it connects lazily and reconnects by itself. `metrics` counts its
    calls; with `traces`, on or off, they carry their caller's trail.
    """
    if tls is not None:
        channel = tls.channel(address, _OPTIONS)
    else:
        channel = grpc.insecure_channel(address, options=_OPTIONS)
    if metrics is not None:
        metrics.watch(channel)
    if traces is not None:
        rpc_trail.carry(channel, traces)
    return channel


def call(
    method: Callable[..., _Reply],
    request: Any,
    *,
    peer: str,
    timeout: float,
    stop: threading.Event | None = None,
) -> _Reply:
    """Calls a stub's method until it answers, retrying UNAVAILABLE with jittered back-off.

    Raises the error family's class of the status. No attempt or retry outlives `timeout` seconds;
    `stop` ends the retries early (Unavailable).
    """
    deadline, pause = time.monotonic() + timeout, _FIRST_PAUSE
    waiter = stop or threading.Event()
    while True:
        try:
            return method(request, timeout=max(0.001, deadline - time.monotonic()))
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE or time.monotonic() + pause >= deadline:
                raise _family(error, peer, timeout) from error
        if waiter.wait(pause * random.uniform(0.5, 1.5)):
            raise errors.Unavailable(f"{peer}: given up because this process is stopping")
        pause = min(pause * 2, _LONGEST_PAUSE)


@dataclasses.dataclass(frozen=True)
class Call(Generic[_Reply]):
    """One of several calls made at a time: a stub's method, its request, and whom it asks."""

    method: grpc.UnaryUnaryMultiCallable[Any, _Reply]
    request: Any
    peer: str


def call_all(
    calls: Sequence[Call[_Reply]],
    *,
    timeout: float,
    stop: threading.Event | None = None,
    retry: bool = True,
) -> list[_Reply]:
    """Makes all calls at the same time, without a thread each; retries each like `call`.

    Returns the replies in the order of the calls, within `timeout` seconds for all together. The
    first failure cancels the rest and is raised; so does `stop` (Unavailable). Without `retry`
    UNAVAILABLE is a failure like any other.
    """
    # With fail_fast a failure is raised: what comes back are replies.
    fan_out = _FanOut(calls, timeout, stop, fail_fast=True, retry=retry)
    return cast(list[_Reply], fan_out.run())


def call_each(
    calls: Sequence[Call[_Reply]], *, timeout: float, stop: threading.Event | None = None
) -> list[_Reply | errors.EmbermeshError]:
    """Like `call_all`, but a failure stands where its reply would, and the other calls go on."""
    return _FanOut(calls, timeout, stop, fail_fast=False, retry=True).run()


class _FanOut(Generic[_Reply]):
    """State of several calls: their caller's alone; gRPC's threads only put into `_ended`."""

    def __init__(
        self,
        calls: Sequence[Call[_Reply]],
        timeout: float,
        stop: threading.Event | None,
        *,
        fail_fast: bool,
        retry: bool,
    ) -> None:
        self._calls, self._timeout = calls, timeout
        self._fail_fast, self._retry = fail_fast, retry
        self._deadline = time.monotonic() + timeout
        self._stop = stop or threading.Event()
        self._ended: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._running: dict[int, Any] = {}
        self._retries: list[tuple[float, int]] = []  # heap of (when, index)
        self._pauses = [_FIRST_PAUSE] * len(calls)
        self._outcomes: dict[int, _Reply | errors.EmbermeshError] = {}

    def run(self) -> list[_Reply | errors.EmbermeshError]:
        try:
            self._drive()
        finally:
            for future in self._running.values():
                future.cancel()  # its late answer goes nowhere
        return [self._outcomes[index] for index in range(len(self._calls))]

    def _drive(self) -> None:
        for index in range(len(self._calls)):
            self._begin(index)
        while len(self._outcomes) < len(self._calls):
            if self._stop.is_set():
                self._give_up()
                return
            while self._retries and self._retries[0][0] <= time.monotonic():
                self._begin(heapq.heappop(self._retries)[1])
            try:
                self._settle(*self._ended.get(timeout=self._patience()))
            except queue.Empty:
                continue

    def _begin(self, index: int) -> None:
        call = self._calls[index]
        left = max(0.001, self._deadline - time.monotonic())
        future = call.method.future(call.request, timeout=left)
        self._running[index] = future
        future.add_done_callback(lambda done: self._ended.put((index, done)))

    def _settle(self, index: int, future: Any) -> None:
        self._running.pop(index, None)
        error = future.exception()
        if error is None:
            self._outcomes[index] = future.result()
            return
        again = time.monotonic() + self._pauses[index] * random.uniform(0.5, 1.5)
        again_helps = self._retry and future.code() == grpc.StatusCode.UNAVAILABLE
        if again_helps and again < self._deadline:
            heapq.heappush(self._retries, (again, index))
            self._pauses[index] = min(self._pauses[index] * 2, _LONGEST_PAUSE)
            return
        failure = _failure(error, self._calls[index].peer, self._timeout)
        if self._fail_fast:
            raise failure from error
        self._outcomes[index] = failure

    def _give_up(self) -> None:
        for index, call in enumerate(self._calls):
            if index not in self._outcomes:
                text = f"{call.peer}: given up because this process is stopping"
                if self._fail_fast:
                    raise errors.Unavailable(text)
                self._outcomes[index] = errors.Unavailable(text)

    def _patience(self) -> float:
        """Seconds to wait for an answer before looking at retries and `stop` again."""
        if not self._retries:
            return 0.1
        return min(0.1, max(0.001, self._retries[0][0] - time.monotonic()))


def _failure(error: Exception, peer: str, timeout: float) -> errors.EmbermeshError:
    if isinstance(error, grpc.RpcError):
        return _family(error, peer, timeout)
    # A stub of this process fails with what its servicer raised.
    kind = type(error) if isinstance(error, errors.EmbermeshError) else errors.EmbermeshError
    return kind(f"{peer}: {error}")


def _family(error: grpc.RpcError, peer: str, timeout: float) -> errors.EmbermeshError:
    failure = errors.from_grpc(error, peer)
    details = error.details() if isinstance(error, grpc.Call) else None
    if isinstance(failure, errors.DeadlineExceeded) and details == "Deadline Exceeded":
        # gRPC's own words don't say how long; a server's DeadlineExceeded brings better ones.
        return errors.DeadlineExceeded(f"{peer}: no answer within {timeout:g} s")
    return failure
