"""The gateway's side of the checkpoint service: direct calls for users, background calls for the
reconciler.

Every call has a deadline and is tried once; who wants to try again decides that by what the error
says.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any, TypeVar

import grpc

from services.api.views import CheckpointView
from services.kit import errors, rpc, tracing
from services.kit.tls import Tls
from services.kit.tracing import Tracing
from services.kit.trail import bound
from services.wire import checkpoint_pb2, checkpoint_pb2_grpc

LIST_SECONDS = 30.0
_THREADS = 8  # checkpoints that are under way at once for the reconciler
_Reply = TypeVar("_Reply")


@dataclasses.dataclass(frozen=True)
class Call:
    """A checkpoint the reconciler asked for; times are Unix seconds."""

    generation: int
    purpose: str
    began: float  # first try for this purpose
    ended: float | None = None  # None: under way
    checkpoint: CheckpointView | None = None
    error: str = ""
    permanent: bool = False


class CheckpointClient:
    """Calls the service at `address`; `seconds` bounds a Trigger. Thread-safe."""

    def __init__(
        self,
        address: str,
        seconds: float,
        clock: Callable[[], float] = time.time,
        tls: Tls | None = None,
        traces: Tracing = tracing.OFF,
    ) -> None:
        self._address, self._seconds, self._clock = address, seconds, clock
        self._channel = rpc.connect(address, tls, traces=traces)
        self._stub = checkpoint_pb2_grpc.CheckpointStub(self._channel)
        self._pool = futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="checkpoint")
        self._lock = threading.Lock()  # guards _calls
        self._calls: dict[str, Call] = {}  # job -> its last call

    def take(self, job: str, generation: int) -> CheckpointView:
        """Takes a checkpoint and returns when its manifest is written. Raises the error family's
        classes.
        """
        request = checkpoint_pb2.TriggerRequest(job=job, generation=generation)
        return _view(self._call(self._stub.Trigger, request, self._seconds))

    def list(self, job: str, to: str) -> list[CheckpointView]:
        """Complete checkpoints of the job below `to`, oldest first."""
        request = checkpoint_pb2.ListRequest(job=job, to=to)
        reply = self._call(self._stub.List, request, LIST_SECONDS)
        return [_view(ref) for ref in reply.checkpoints]

    def begin(self, job: str, generation: int, purpose: str) -> None:
        """Takes a checkpoint in the background; does nothing while one is under way for the job."""
        with self._lock:
            before = self._calls.get(job)
            if before is not None and before.ended is None:
                return
            same = before is not None and (before.generation, before.purpose) == (
                generation,
                purpose,
            )
            began = before.began if before is not None and same else self._clock()
            call = Call(generation, purpose, began)
            self._calls[job] = call
            self._pool.submit(bound(self._run), job, call)

    def call_of(self, job: str, generation: int) -> Call | None:
        """The last background call for that generation."""
        with self._lock:
            call = self._calls.get(job)
            return call if call is not None and call.generation == generation else None

    def forget(self, job: str) -> None:
        """Drops what is known of the job's calls."""
        with self._lock:
            self._calls.pop(job, None)

    def close(self) -> None:
        """Gives up calls that are under way; the service goes on with them."""
        self._channel.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, job: str, call: Call) -> None:
        changes: dict[str, Any]
        try:
            changes = {"checkpoint": self.take(job, call.generation)}
        except errors.EmbermeshError as error:
            changes = {"error": str(error), "permanent": error.permanent}
        except (
            Exception
        ) as error:  # a closed channel, a bug: the reconciler must see an end in any case
            changes = {"error": f"{type(error).__name__}: {error}"}
        with self._lock:
            if self._calls.get(job) is call:
                self._calls[job] = dataclasses.replace(call, ended=self._clock(), **changes)

    def _call(self, method: Callable[..., _Reply], request: Any, seconds: float) -> _Reply:
        try:
            return method(request, timeout=seconds)
        except grpc.RpcError as error:
            raise errors.from_grpc(error, f"checkpoint service {self._address}") from error


def _view(ref: checkpoint_pb2.ManifestRef) -> CheckpointView:
    return CheckpointView(
        id=ref.id,
        uri=ref.uri,
        created=ref.created,
        samples=ref.samples,
        rows=ref.rows,
        bytes=ref.bytes,
    )
