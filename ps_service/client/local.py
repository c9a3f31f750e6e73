"""A sparse shard of the calling process behind the face of a gRPC stub: its verbs run on a thread
here, so neither sockets nor serialisation lie between a trainer and its own rows.

Knows nothing of what the verbs do. Their waits have bounds of their own: a shard that closes ends
them, as it does for remote callers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import grpc

from services.kit.errors import EmbermeshError
from services.wire import ps_pb2_grpc

_THREADS = 16  # calls under way: a step's push, pulls of batches ahead, and what others wait for


class LocalStub:
    """The verbs of a servicer that a trainer calls, as `rpc.call_all` uses them."""

    def __init__(self, servicer: ps_pb2_grpc.SparsePsServicer) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="own-shard")
        for verb in ("Configure", "Claim", "Pull", "Push", "Leave", "Removed"):
            setattr(self, verb, _Verb(self._pool, getattr(servicer, verb)))

    def close(self) -> None:
        """Begins no further call; what was asked for and not begun is cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Verb:
    """One verb; `future` stands for that of `grpc.UnaryUnaryMultiCallable`."""

    def __init__(self, pool: ThreadPoolExecutor, method: Callable[[Any, Any], Any]) -> None:
        self._pool, self._method = pool, method

    def future(self, request: Any, timeout: float) -> _Answer:
        del timeout  # see the module
        # No verb of a trainer looks at its context.
        context = cast(grpc.ServicerContext, None)
        return _Answer(self._pool.submit(self._method, request, context))


class _Answer:
    """A call under way, as `grpc.Future` shows it."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def add_done_callback(self, callback: Callable[[_Answer], None]) -> None:
        self._future.add_done_callback(lambda _: callback(self))

    def exception(self) -> BaseException | None:
        return self._future.exception()

    def result(self) -> Any:
        return self._future.result()

    def cancel(self) -> bool:
        return self._future.cancel()

    def code(self) -> grpc.StatusCode:
        error = self._future.exception()
        return error.code if isinstance(error, EmbermeshError) else grpc.StatusCode.INTERNAL
