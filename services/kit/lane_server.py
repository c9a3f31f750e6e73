"""The server's end of a lane: a thread for each connection, which answers its calls in turn.

Verbs are answered as by gRPC, see `rpc_answer`. A frame that is none ends its connection, after an
answer that says why. Knows no verb by name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, cast

import grpc
from google.protobuf.message import DecodeError, Message

from services.kit import errors, lane, rpc_trail
from services.kit.lane import Closed, Laden, Room
from services.kit.rpc_answer import Answering
from services.wire import lane_pb2

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 512  # a trainer has as many as it has calls under way
_SEND_SECONDS = 60.0  # that a caller may leave an answer untouched


@dataclasses.dataclass(frozen=True)
class LaneVerb:
    """One verb: `answer(request message, arrays)`."""

    request: type[Message]
    answer: Callable[[Any, list[memoryview]], Laden]
    keeps: bool  # may look at the arrays after it has answered


@dataclasses.dataclass(frozen=True)
class LaneVerbs:
    """Verbs by their paths, and the memory that their arrays come into."""

    verbs: Mapping[str, LaneVerb]
    room: Room


def joined(given: Iterable[LaneVerbs]) -> LaneVerbs | None:
    """The verbs of all; None for none."""
    all_of = list(given)
    verbs = {path: verb for lane_verbs in all_of for path, verb in lane_verbs.verbs.items()}
    return LaneVerbs(verbs, all_of[0].room) if all_of else None


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


class LaneServer:
    """Answers calls until it is drained."""

    def __init__(self, listener: socket.socket, verbs: LaneVerbs, answering: Answering) -> None:
        """`listener` is bound; see `open`."""
        self._listener, self._verbs, self._answering = listener, verbs, answering
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._draining = threading.Event()
        self._accepting = threading.Thread(target=self._accept, name="lane", daemon=True)
        listener.listen()
        self._accepting.start()

    @classmethod
    def open(cls, address: str, verbs: LaneVerbs, answering: Answering) -> LaneServer | None:
        """The lane beside the gRPC server at `address`; None where there can't be one."""
        name = lane.socket_name(address)
        if name is None:
            return None
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(name)
        except OSError as error:  # somebody else's; callers find out that it isn't ours
            listener.close()
            log.warning("no lane at %s: %s; its calls come by gRPC", address, error)
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
                target=self._serve, args=(connection,), name="lane-call", daemon=True
            )
            with self._lock:
                if len(self._connections) >= MAX_CONNECTIONS or self._draining.is_set():
                    connection.close()
                    continue
                self._connections[connection] = thread
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            lane.prepare(connection, socket.SO_SNDTIMEO)
            connection.sendall(lane.HELLO)
            buffer = _Buffer(self._verbs.room)
            while not self._draining.is_set():
                self._answer(connection, buffer)
        except (Closed, OSError):  # the caller is gone, or this server is
            pass
        except Exception:  # a bug ends a connection, not the server
            log.exception("a lane's connection failed")
        finally:
            with self._lock:
                del self._connections[connection]
            connection.close()

    def _answer(self, connection: socket.socket, buffer: _Buffer) -> None:
        """One call. Raises Closed when there is none, and after a frame that is none."""
        context = _Context()
        head, answer, unread = lane_pb2.LaneRequest(), Laden(lane_pb2.LaneReply(), []), True
        try:
            head = lane_pb2.LaneRequest.FromString(lane.receive_head(connection, _idle))
            verb = self._verbs.verbs.get(head.method)
            keeps = verb is None or verb.keeps
            room = self._verbs.room if keeps else buffer.room
            arrays = lane.receive_arrays(connection, head.arrays, room, _idle)
            unread = False
            if verb is None:
                raise errors.NotFound(f"no verb {head.method} on this lane")
            answer = self._run(verb, head, arrays, context)
        except _Aborted:
            pass
        except DecodeError as error:
            context.status, context.details = grpc.StatusCode.INVALID_ARGUMENT, f"head: {error}"
        except errors.EmbermeshError as error:
            context.status, context.details = error.code, str(error)
        reply = lane_pb2.LaneReply(
            code=lane.number_of(context.status),
            details=context.details,
            message=answer.message.SerializeToString(),
            arrays=[a.nbytes for a in answer.arrays],
        )
        if head.method in self._verbs.verbs:
            received = len(head.message) + sum(head.arrays)
            sent = len(reply.message) + sum(reply.arrays)
            self._answering.metrics.count(head.method, received=received, sent=sent)
        lane.send(connection, reply, answer.arrays, _Patience(_SEND_SECONDS))
        if unread:
            raise Closed("what follows a bad head can't be told from arrays")

    def _run(
        self,
        verb: LaneVerb,
        head: lane_pb2.LaneRequest,
        arrays: list[memoryview],
        context: _Context,
    ) -> Laden:
        """Raises _Aborted with the status in `context`."""

        def run(_message: Message, _context: grpc.ServicerContext) -> Laden:
            return verb.answer(_message, arrays)

        brought = rpc_trail.carried(list(head.trail.items()))
        answer = self._answering.answer(run, head.method, brought)
        message = verb.request.FromString(head.message)
        reply: Laden = answer(message, cast(grpc.ServicerContext, context))
        return reply


class _Buffer:
    """Memory of one connection, used for one call after another."""

    def __init__(self, room: Room) -> None:
        self._room, self._memory = room, memoryview(b"")

    def room(self, size: int) -> memoryview:
        """See `lane.Room`; what it gave before is given anew."""
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
