"""The servers in the calling process behind the face of gRPC stubs: neither sockets nor messages
full of arrays lie between a trainer and its own shard and block.

Arrays are handed over as they are, where values travel as fp32; then what doesn't wait for other
trainers runs on the caller's thread. Everything else runs on a thread here. Knows nothing of what
the verbs do. Their waits have bounds of their own: a server that closes ends them, as it does for
remote callers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import grpc

from ps_service.own import OwnBlock, OwnShard, WithArrays
from services.kit.errors import EmbermeshError

_THREADS = 16  # calls under way: a step's push, pulls of batches ahead, and what others wait for


class _Local:
    """Verbs of one server; they run on threads that live as long as this."""

    def __init__(self, name: str, server: Any, verbs: Sequence[str]) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix=name)
        for verb in verbs:
            setattr(self, verb, _Verb(self._pool, getattr(server, verb)))

    def close(self) -> None:
        """Begins no further call; what was asked for and not begun is cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class LocalShard(_Local):
    """A stub for `rpc.call_all`. Pull takes a SparsePullRequest or a RowRead, Push likewise."""

    def __init__(self, shard: OwnShard) -> None:
        super().__init__("own-shard", shard, ("Configure", "Claim", "Leave", "Removed"))
        self.Pull = _Verb(self._pool, shard.Pull, shard.pull_rows, at_once=True)
        self.Push = _Verb(self._pool, shard.Push, shard.push_rows, at_once=not shard.pushes_wait)


class LocalBlock(_Local):
    """A stub for `rpc.call_all`. Push takes a DensePushRequest or a BlockPush."""

    def __init__(self, block: OwnBlock) -> None:
        verbs = ("Configure", "Claim", "Pull", "Merge", "Leave", "Stats")
        super().__init__("own-block", block, verbs)
        self.Push = _Verb(self._pool, block.Push, block.push_floats, at_once=not block.pushes_wait)


class _Verb:
    """One verb; `future` stands for that of `grpc.UnaryUnaryMultiCallable`."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        method: Callable[[Any, Any], Any],
        with_arrays: Callable[[Any], Any] | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        """`with_arrays` takes requests of `own`; `at_once`: on the caller's thread."""
        self._pool, self._method = pool, method
        self._with_arrays, self._at_once = with_arrays, at_once

    def future(self, request: Any, timeout: float) -> _Answer:
        del timeout  # see the module
        if self._with_arrays is None or not isinstance(request, WithArrays):
            # No verb of a trainer looks at its context.
            context = cast(grpc.ServicerContext, None)
            return _Answer(self._pool.submit(self._method, request, context))
        if not self._at_once:
            return _Answer(self._pool.submit(self._with_arrays, request))
        done: Future[Any] = Future()
        try:
            done.set_result(self._with_arrays(request))
        except Exception as error:  # the caller finds it where it finds those of remote shards
            done.set_exception(error)
        return _Answer(done)


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
