"""A bypass: a Unix socket beside a gRPC server, for calls between processes of one machine.

gRPC for Python copies a message some ten times between two processes and holds the interpreter for
most of that. A bypass sends arrays from where they lie to where they stay: the kernel's two copies
are the only ones. It has gRPC's statuses, deadlines and trails; the server's end is
`bypass_server`, the frames are in docs/formats.md, "Bypasses". Knows no verb by name.

The socket's name is the server's address in Linux's abstract namespace, which belongs to a network
namespace: who finds it is on the same host as seen by the network, and nothing is left behind.
Both ends talk to processes of their own user only.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from services.kit import errors, rpc_trail, tracing
from services.kit.laden import Laden, Method
from services.kit.rpc_answer import MAX_MESSAGE_BYTES
from services.kit.rpc_metrics import ClientMetrics, service_and_verb
from services.kit.tracing import Tracing
from services.wire import bypass_pb2

HELLO = b"embermesh bypass 1"  # what a server says first; another version is another bypass
_LOOK_SECONDS = 0.1  # how often a wait looks whether it must end
_CONNECT_SECONDS = 2.0
_ALIGNED = 64  # bytes; arrays begin at multiples of it behind the head
_LENGTH = struct.Struct("<I")  # bytes of the head
_PEER = struct.Struct("3i")  # Linux's struct ucred: process, user, group
_TIMEVAL = struct.pack("ll", 0, int(_LOOK_SECONDS * 1e6))
_LONGEST_NAME = 107  # bytes of a Unix socket's name
_PIECE = 1 << 20  # bytes of a head read at a time
_AT_ONCE = 512  # buffers of one sendmsg


# Memory for so many bytes, writable and aligned for any number.
Room = Callable[[int], memoryview]


class Closed(Exception):
    """The other end is gone."""


def socket_name(address: str) -> str | None:
    """Name of the socket beside the server at `address`; None where there are no bypasses."""
    name = f"\0embermesh-bypass:{address}"
    supported = sys.platform == "linux" and len(name.encode()) <= _LONGEST_NAME
    return name if supported else None


def limit_waits(connection: socket.socket, *kinds: int) -> None:
    """Makes the given kinds of wait, SO_RCVTIMEO and SO_SNDTIMEO, wake up now and then."""
    for kind in kinds:
        connection.setsockopt(socket.SOL_SOCKET, kind, _TIMEVAL)


def expect_own_user(connection: socket.socket) -> None:
    """Raises Closed when the other end is another user's process."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    if _PEER.unpack(credentials)[1] != os.getuid():
        raise Closed("the other end belongs to another user")


def send(
    connection: socket.socket,
    head: Message,
    arrays: Sequence[memoryview],
    waiting: Callable[[], None],
) -> None:
    """Sends a frame. `waiting` is called while the other end takes nothing, and may raise. Raises
    Closed.
    """
    data = head.SerializeToString()
    buffers = [memoryview(_LENGTH.pack(len(data)) + data)]
    for array in arrays:
        view = array.cast("B")
        buffers += [view, memoryview(bytes(-view.nbytes % _ALIGNED))]
    buffers = [b for b in buffers if b.nbytes]
    while buffers:
        try:
            sent = connection.sendmsg(buffers[:_AT_ONCE])
        except BlockingIOError:
            waiting()
            continue
        except OSError as error:
            raise Closed(str(error)) from error
        while buffers and sent >= buffers[0].nbytes:
            sent -= buffers.pop(0).nbytes
        if sent:
            buffers[0] = buffers[0][sent:]


def receive_head(connection: socket.socket, waiting: Callable[[], None]) -> bytes:
    """The head of the next frame, to be parsed. Raises Closed, and InvalidInput for a length that
    none has.
    """
    length = bytearray(_LENGTH.size)
    _fill(connection, memoryview(length), waiting)
    size = _LENGTH.unpack(length)[0]
    if size > MAX_MESSAGE_BYTES:
        raise errors.InvalidInput(f"head has {size} bytes, at most {MAX_MESSAGE_BYTES}")
    head = bytearray()
    while len(head) < size:  # memory grows with what comes, not with what is announced
        piece = bytearray(min(_PIECE, size - len(head)))
        _fill(connection, memoryview(piece), waiting)
        head += piece
    return bytes(head)


def receive_arrays(
    connection: socket.socket,
    sizes: Sequence[int],
    room: Room,
    waiting: Callable[[], None],
) -> list[memoryview]:
    """The arrays of a frame, which lie in what `room` gives for so many bytes. Raises Closed, and
    InvalidInput for more than a message may have.
    """
    ends, total = [], 0
    for size in sizes:
        ends.append((total, total + size))
        total += size + -size % _ALIGNED
    if total > MAX_MESSAGE_BYTES:
        raise errors.InvalidInput(f"arrays have {total} bytes, at most {MAX_MESSAGE_BYTES}")
    view = room(total)
    _fill(connection, view, waiting)
    return [view[begin:end] for begin, end in ends]


def _fill(connection: socket.socket, view: memoryview, waiting: Callable[[], None]) -> None:
    while view.nbytes:
        try:
            count = connection.recv_into(view, 0, socket.MSG_WAITALL)
        except BlockingIOError:
            waiting()
            continue
        except OSError as error:
            raise Closed(str(error)) from error
        if count == 0:
            raise Closed("the other end has closed the bypass")
        view = view[count:]


class Bypass:
    """Calls to one server. Thread-safe: a call has a connection for itself."""

    def __init__(
        self,
        address: str,
        room: Room,
        stop: threading.Event | None = None,
        metrics: ClientMetrics | None = None,
        traces: Tracing | None = None,
    ) -> None:
        """`room` gives memory for the arrays of replies; `stop` ends waits with Unavailable. Raises
        Closed when the server at `address` has no bypass for this process.
        """
        name = socket_name(address)
        if name is None:
            raise Closed("no bypasses here")
        self._name, self._room, self._stop = name, room, stop or threading.Event()
        self._metrics, self._traces = metrics, traces or tracing.OFF
        self._lock = threading.Lock()
        self._idle: list[socket.socket] | None = [self._connect()]  # None: closed
        if metrics is not None:
            metrics.bypasses.inc()

    def call(self, method: Method, request: Laden, timeout: float) -> Laden:
        """The answer to one call. Raises the error family's class of its status, Unavailable when
        the server is away and DeadlineExceeded after `timeout` seconds.
        """
        outgoing = self._traces.outgoing(*service_and_verb(method.path))
        code = grpc.StatusCode.OK
        try:
            return self._call(method, request, timeout, outgoing)
        except errors.EmbermeshError as error:
            code = error.code
            raise
        finally:
            outgoing.end(code)

    def close(self) -> None:
        """Ends the connections; of calls under way as soon as they are over."""
        with self._lock:
            if self._idle is None:
                return
            idle, self._idle = self._idle, None
        if self._metrics is not None:
            self._metrics.bypasses.dec()
        for connection in idle:
            connection.close()

    def _call(
        self,
        method: Method,
        request: Laden,
        timeout: float,
        outgoing: tracing.OutgoingCall,
    ) -> Laden:
        head = bypass_pb2.BypassRequest(
            method=method.path,
            message=request.message.SerializeToString(),
            arrays=[a.nbytes for a in request.arrays],
            trail=dict(rpc_trail.metadata(outgoing)),
        )
        sent = len(head.message) + sum(head.arrays)
        if sent > MAX_MESSAGE_BYTES:
            raise errors.InvalidInput(f"request has {sent} bytes, at most {MAX_MESSAGE_BYTES}")
        deadline = time.monotonic() + timeout

        def waiting() -> None:
            if self._stop.is_set() or self._idle is None:
                raise errors.Unavailable("given up because this process is stopping")
            if time.monotonic() >= deadline:
                raise errors.DeadlineExceeded(f"no answer within {timeout:g} s")

        try:
            connection = self._take()
            try:
                send(connection, head, request.arrays, waiting)
                answer = bypass_pb2.BypassReply.FromString(receive_head(connection, waiting))
                arrays = receive_arrays(connection, answer.arrays, self._room, waiting)
            except BaseException:
                connection.close()
                raise
        except (Closed, DecodeError) as error:
            raise errors.Unavailable(f"bypass: {error}") from error
        self._give(connection)
        if self._metrics is not None:
            received = len(answer.message) + sum(answer.arrays)
            self._metrics.count(method.path, sent=sent, received=received)
        if answer.code:
            raise errors.kind_of(status_of(answer.code))(answer.details)
        return Laden(method.reply.FromString(answer.message), arrays)

    def _take(self) -> socket.socket:
        with self._lock:
            if self._idle is None:
                raise Closed("this end has closed the bypass")
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _give(self, connection: socket.socket) -> None:
        with self._lock:
            if self._idle is not None:
                self._idle.append(connection)
                return
        connection.close()

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + _CONNECT_SECONDS

        def waiting() -> None:
            if time.monotonic() >= deadline:
                raise Closed("no greeting")

        connection = socket.socket(socket.AF_UNIX)
        try:
            limit_waits(connection, socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)
            connection.connect(self._name)
            expect_own_user(connection)
            hello = bytearray(len(HELLO))
            _fill(connection, memoryview(hello), waiting)
            if hello != HELLO:
                raise Closed("the server speaks another version")
        except OSError as error:
            connection.close()
            raise Closed(str(error)) from error
        except BaseException:
            connection.close()
            raise
        return connection


def status_of(code: int) -> grpc.StatusCode:
    """The status with this number; UNKNOWN if none has it."""
    return _STATUSES.get(code, grpc.StatusCode.UNKNOWN)


def number_of(status: grpc.StatusCode) -> int:
    """The number that stands for `status` on the wire."""
    value: Any = status.value
    return int(value[0])


_STATUSES = {number_of(status): status for status in grpc.StatusCode}
