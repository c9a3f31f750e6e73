"""The server's end of a bypass: a thread for each connection, which answers its calls in turn.

Verbs are answered as by gRPC, see `rpc_answer`. A frame that is none ends its connection, after an
answer that says why. Knows no verb by name.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from typing import NoReturn, cast

import grpc
from google.protobuf.message import DecodeError

from services.kit import bypass, errors, rpc_trail
from services.kit.bypass import Closed, Room
from services.kit.laden import Laden
from services.kit.rpc_answer import Answering, LadenVerb, LadenVerbs
from services.wire import bypass_pb2

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 512  # a trainer has as many as it has calls under way
_SEND_SECONDS = 60.0  # that a caller may leave an answer untouched


class _Aborted(Exception):
    """A verb has ended with a status."""


class _Context:
    """As much of grpc.ServicerContext as `rpc_answer` and `rpc_trail` use."""

    def __init__(self) -> None:
        self.status, self.details = grpc.StatusCode.OK, ""

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        self.status, self.details = code, details
        raise _Aborted

    def code(self) -> grpc.StatusCode:
        return self.status


class BypassServer:
    """Answers calls until it is drained."""

    def __init__(self, listener: socket.socket, verbs: LadenVerbs, answering: Answering) -> None:
        """`listener` is bound; see `open`."""
        self._listener, self._answering = listener, answering
        self._by_path, self._room = verbs.by_path(), verbs.room
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._draining = threading.Event()
        self._accepting = threading.Thread(target=self._accept, name="bypass", daemon=True)
        listener.listen()
        self._accepting.start()

    @classmethod
    def open(cls, address: str, verbs: LadenVerbs, answering: Answering) -> BypassServer | None:
        """The bypass beside the gRPC server at `address`; None where there can't be one."""
        name = bypass.socket_name(address)
        if name is None:
            return None
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(name)
        except OSError as error:  # somebody else's; callers find out that it isn't ours
            listener.close()
            log.warning("no bypass at %s: %s; its calls come by gRPC", address, error)
            return None
        return cls(listener, verbs, answering)

    def drain(self, seconds: float) -> None:
        """Refuses new calls, lets running ones finish for at most `seconds`."""
        self._draining.set()
        _shut(self._listener, socket.SHUT_RDWR)
        self._accepting.join(seconds)
        self._listener.close()
        with self._lock:
            running = dict(self._connections)
        for connection in running:
            _shut(connection, socket.SHUT_RD)  # ends the wait for a next call
        deadline = time.monotonic() + seconds
        for thread in running.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        for connection in running:
            _shut(connection, socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._draining.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:  # drained
                return
            thread = threading.Thread(
                target=self._serve, args=(connection,), name="bypass-call", daemon=True
            )
            with self._lock:
                if len(self._connections) >= MAX_CONNECTIONS or self._draining.is_set():
                    connection.close()
                    continue
                self._connections[connection] = thread
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            bypass.limit_waits(connection, socket.SO_SNDTIMEO)
            bypass.expect_own_user(connection)
            connection.sendall(bypass.HELLO)
            buffer = _Buffer(self._room)
            while not self._draining.is_set():
                self._answer(connection, buffer)
        except (Closed, OSError):  # the caller is gone, or this server is
            pass
        except Exception:  # a bug ends a connection, not the server
            log.exception("a bypass's connection failed")
        finally:
            with self._lock:
                del self._connections[connection]
            connection.close()

    def _answer(self, connection: socket.socket, buffer: _Buffer) -> None:
        """One call. Raises Closed when there is none, and after a frame that is none."""
        context = _Context()
        head, answer, unread = bypass_pb2.BypassRequest(), Laden(bypass_pb2.BypassReply(), []), True
        try:
            head = bypass_pb2.BypassRequest.FromString(bypass.receive_head(connection, _idle))
            verb = self._by_path.get(head.method)
            keeps = verb is None or verb.keeps
            room = self._room if keeps else buffer.room
            arrays = bypass.receive_arrays(connection, head.arrays, room, _idle)
            unread = False
            if verb is None:
                raise errors.NotFound(f"no verb {head.method} on this bypass")
            answer = self._run(verb, head, arrays, context)
        except _Aborted:
            pass
        except DecodeError as error:
            context.status, context.details = grpc.StatusCode.INVALID_ARGUMENT, f"head: {error}"
        except errors.EmbermeshError as error:
            context.status, context.details = error.code, str(error)
        reply = bypass_pb2.BypassReply(
            code=bypass.number_of(context.status),
            details=context.details,
            message=answer.message.SerializeToString(),
            arrays=[a.nbytes for a in answer.arrays],
        )
        if head.method in self._by_path:
            received = len(head.message) + sum(head.arrays)
            sent = len(reply.message) + sum(reply.arrays)
            self._answering.metrics.count(head.method, received=received, sent=sent)
        bypass.send(connection, reply, answer.arrays, _Patience(_SEND_SECONDS))
        if unread:
            raise Closed("what follows a bad head can't be told from arrays")

    def _run(
        self,
        verb: LadenVerb,
        head: bypass_pb2.BypassRequest,
        arrays: list[memoryview],
        context: _Context,
    ) -> Laden:
        """Raises _Aborted with the status in `context`."""
        brought = rpc_trail.carried(list(head.trail.items()))
        answer = self._answering.answer(verb, head.method, brought)
        request = Laden(verb.method.request.FromString(head.message), arrays)
        reply: Laden = answer(request, cast(grpc.ServicerContext, context))
        return reply


class _Buffer:
    """Memory of one connection, used for one call after another."""

    def __init__(self, room: Room) -> None:
        self._room, self._memory = room, memoryview(b"")

    def room(self, size: int) -> memoryview:
        """See `bypass.Room`; what it gave before is given anew."""
        if self._memory.nbytes < size:
            self._memory = self._room(size)
        return self._memory[:size]


class _Patience:
    """A caller that has not taken its answer after `seconds` is given up."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    def __call__(self) -> None:
        if time.monotonic() >= self._deadline:
            raise Closed("the caller does not take its answer")


def _idle() -> None:
    """Waiting for a call may take as long as it does; a shut connection ends it."""


def _shut(connection: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):  # it is closed already
        connection.shutdown(how)
