"""Stubs of servers on this machine: what a trainer calls each step goes over a lane, with its
arrays beside the messages, the rest by gRPC. The server's end is `server.lanes`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.message import Message

from ps_service.own import Rows, RowsPushed
from services.kit.errors import Damaged, EmbermeshError
from services.kit.lane import Laden, Lane
from services.wire import ps_pb2, ps_pb2_grpc

_THREADS = 16  # calls under way to one server: a step's push, pulls of batches ahead
_SERVICE = "/embermesh.wire.v1"


@dataclasses.dataclass(frozen=True)
class Stepped:
    """What a dense push led to, as DenseValuesReply has it."""

    values: memoryview
    version: int
    pause: bool


class _Stub:
    """Verbs by lane on threads of their own, or on the caller's."""

    def __init__(self, lane: Lane, threads: bool) -> None:
        self._lane = lane
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="lane") if threads else None

    def close(self) -> None:
        """Begins no further call and ends those under way."""
        self._lane.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


class ShardLane(_Stub):
    """A stub for `rpc.call_all`. Push takes a message and its gradients, Laden."""

    def __init__(self, stub: ps_pb2_grpc.SparsePsStub, lane: Lane, *, threads: bool) -> None:
        """Without `threads` a call by lane blocks its caller: for those who wait for one alone."""
        super().__init__(lane, threads)
        self.Configure, self.Claim = stub.Configure, stub.Claim
        self.Leave, self.Removed = stub.Leave, stub.Removed
        pull, push = f"{_SERVICE}.SparsePs/Pull", f"{_SERVICE}.SparsePs/Push"
        self.Pull = _Verb(self._pool, lane, pull, ps_pb2.SparsePullReply, _rows)
        self.Push = _Verb(self._pool, lane, push, ps_pb2.SparsePushReply, _rows_pushed)


class BlockLane(_Stub):
    """A stub for `rpc.call_all`. Push takes a message and its gradient, Laden."""

    def __init__(self, stub: ps_pb2_grpc.DensePsStub, lane: Lane, *, threads: bool) -> None:
        """As ShardLane."""
        super().__init__(lane, threads)
        self.Configure, self.Claim, self.Pull = stub.Configure, stub.Claim, stub.Pull
        self.Merge, self.Leave, self.Stats = stub.Merge, stub.Leave, stub.Stats
        push = f"{_SERVICE}.DensePs/Push"
        self.Push = _Verb(self._pool, lane, push, ps_pb2.DenseValuesReply, _stepped)


class _Verb:
    """One verb; `future` stands for that of `grpc.UnaryUnaryMultiCallable`."""

    def __init__(
        self,
        pool: ThreadPoolExecutor | None,
        lane: Lane,
        method: str,
        reply: type[Message],
        read: Callable[[Laden], Any],
    ) -> None:
        self._pool, self._lane, self._method = pool, lane, method
        self._reply, self._read = reply, read

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
            answer.set_result(
                self._read(self._lane.call(self._method, request, self._reply, timeout))
            )
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
