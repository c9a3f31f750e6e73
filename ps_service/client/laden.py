"""Stubs of the servers as a trainer calls them: the verbs of `laden_verbs` with their arrays beside
the messages, over a bypass where the server is on this machine, else by gRPC like the rest. The
other end is `server.laden`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.message import Message

from ps_service.laden_verbs import DENSE_PUSH, SPARSE_PULL, SPARSE_PUSH
from ps_service.own import Rows, RowsPushed
from services.kit.bypass import Bypass
from services.kit.errors import Damaged, EmbermeshError
from services.kit.laden import Laden, Method
from services.wire import ps_pb2_grpc

_THREADS = 16  # calls under way to one server: a step's push, pulls of batches ahead


@dataclasses.dataclass(frozen=True)
class Stepped:
    """What a dense push led to, as DenseValuesReply has it."""

    values: memoryview
    version: int
    pause: bool


class Way:
    """How the verbs of one server that have arrays are called."""

    def __init__(self, channel: grpc.Channel, bypass: Bypass | None, *, threads: bool) -> None:
        """Without `threads` a call over `bypass` blocks its caller, who waits for it alone."""
        self.channel, self.bypass = channel, bypass
        threads = threads and bypass is not None
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="bypass") if threads else None

    def verb(self, method: Method, read: Callable[[Laden], Any]) -> Any:
        """A callable like those of a stub; `read` makes its replies."""
        if self.bypass is not None:
            return _OverBypass(self._pool, self.bypass, method, read)
        return self.channel.unary_unary(
            method.path,
            request_serializer=method.write_request,
            response_deserializer=lambda data: read(method.read_reply(data)),
        )

    def close(self) -> None:
        """Begins no further call and ends those under way."""
        if self.bypass is not None:
            self.bypass.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self.channel.close()


class ShardStub:
    """Verbs of a sparse shard. Push takes a message and its gradients, Laden."""

    def __init__(self, way: Way) -> None:
        plain = ps_pb2_grpc.SparsePsStub(way.channel)
        self.Configure, self.Claim = plain.Configure, plain.Claim
        self.Leave, self.Removed = plain.Leave, plain.Removed
        self.Pull = way.verb(SPARSE_PULL, _rows)
        self.Push = way.verb(SPARSE_PUSH, _rows_pushed)


class BlockStub:
    """Verbs of a dense block. Push takes a message and its gradient, Laden."""

    def __init__(self, way: Way) -> None:
        plain = ps_pb2_grpc.DensePsStub(way.channel)
        self.Configure, self.Claim, self.Pull = plain.Configure, plain.Claim, plain.Pull
        self.Merge, self.Leave, self.Stats = plain.Merge, plain.Leave, plain.Stats
        self.Push = way.verb(DENSE_PUSH, _stepped)


class _OverBypass:
    """One verb; `future` stands for that of `grpc.UnaryUnaryMultiCallable`."""

    def __init__(
        self,
        pool: ThreadPoolExecutor | None,
        bypass: Bypass,
        method: Method,
        read: Callable[[Laden], Any],
    ) -> None:
        self._pool, self._bypass = pool, bypass
        self._method, self._read = method, read

    def future(self, request: Message | Laden, timeout: float) -> _Answer:
        laden = request if isinstance(request, Laden) else Laden(request, [])
        answer = _Answer()
        if self._pool is None:
            self._call(answer, laden, timeout)
        else:
            self._pool.submit(self._call, answer, laden, timeout)
        return answer

    def _call(self, answer: _Answer, request: Laden, timeout: float) -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(self._read(self._bypass.call(self._method, request, timeout)))
        except Exception as error:  # the caller finds it where gRPC's calls have theirs
            answer.set_exception(error)


class _Answer(Future[Any]):
    """A call under way, as `grpc.Future` shows it."""

    def code(self) -> grpc.StatusCode:
        error = self.exception()
        return error.code if isinstance(error, EmbermeshError) else grpc.StatusCode.INTERNAL


def _rows(reply: Laden) -> Rows:
    return Rows(_one(reply))


def _rows_pushed(reply: Laden) -> RowsPushed:
    message: Any = reply.message
    then = [Rows(array) for array in reply.arrays]
    return RowsPushed(message.applied, message.missing, message.duplicate, then)


def _stepped(reply: Laden) -> Stepped:
    message: Any = reply.message
    return Stepped(_one(reply), message.version, message.pause)


def _one(reply: Laden) -> memoryview:
    if len(reply.arrays) != 1:
        raise Damaged(f"{len(reply.arrays)} arrays beside the reply, expected 1")
    return reply.arrays[0]
