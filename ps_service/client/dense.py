"""DenseClient: one trainer's access to the flat array of dense parameters, cut into even blocks
over the dense-PS.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from ps_service import codec
from ps_service.client.sparse import CALL_SECONDS, CONFIGURE_SECONDS
from services.kit import rpc
from services.kit.errors import Conflict, InvalidInput
from services.kit.rpc import Call
from services.wire import ps_pb2, ps_pb2_grpc


@dataclasses.dataclass(frozen=True)
class DenseStep:
    """The answer to a dense push."""

    values: NDArray[np.float32]  # (n,) after the step
    version: int  # steps applied to block 0
    pause: bool  # every trainer of this step asked to pause: stop after it


class DenseClient:
    """Talks to block i at addresses[i]. Thread-safe once configured."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        generation: int,
        epoch: int,
        rank: int,
        timeout: float = CALL_SECONDS,
        stop: threading.Event | None = None,
    ) -> None:
        """`stop` ends running calls with Unavailable; `timeout` in seconds bounds each verb but
        configure.
        """
        self._names = [f"dense-PS {i} at {a}" for i, a in enumerate(addresses)]
        self._channels = [rpc.connect(a) for a in addresses]
        self._stubs = [ps_pb2_grpc.DensePsStub(c) for c in self._channels]
        self._caller_fields = {"generation": generation, "epoch": epoch, "rank": rank}
        self._timeout, self._stop = timeout, stop
        self._places: list[slice] = []  # of each block in the flat array

    def configure(
        self, optimizer: str, params: Mapping[str, float], initial: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Creates all blocks from `initial` (n,), or checks that they agree; returns the values
        that hold.

        These are `initial` for a fresh job, the restored ones after a restore.
        """
        self._places = even_slices(len(initial), len(self._stubs))
        calls = [
            Call(
                stub.Configure,
                ps_pb2.DenseConfigureRequest(
                    caller=self._caller(0),
                    optimizer=optimizer,
                    params=dict(params),
                    values=codec.pack_floats(initial[place]),
                    offset=place.start,
                ),
                name,
            )
            for stub, place, name in zip(self._stubs, self._places, self._names, strict=True)
        ]
        return self._join(self._ask(calls, max(self._timeout, CONFIGURE_SECONDS)))

    def pull(self) -> NDArray[np.float32]:
        """Current values (n,)."""
        request = ps_pb2.DensePullRequest(caller=self._caller(0))
        calls = [
            Call(stub.Pull, request, name)
            for stub, name in zip(self._stubs, self._names, strict=True)
        ]
        return self._join(self._ask(calls, self._timeout))

    def push(
        self, grads: NDArray[np.float32], *, step: int, samples: int, pause: bool
    ) -> DenseStep:
        """Pushes this trainer's mean gradient (n,) over `samples` rows; returns once all trainers'
        is applied.
        """
        places = self._configured()
        if grads.shape != (places[-1].stop,):
            raise InvalidInput(f"grads has shape {grads.shape}, expected ({places[-1].stop},)")
        calls = [
            Call(
                stub.Push,
                ps_pb2.DensePushRequest(
                    caller=self._caller(step),
                    samples=samples,
                    grads=codec.pack_floats(grads[place]),
                    pause=pause,
                ),
                name,
            )
            for stub, place, name in zip(self._stubs, places, self._names, strict=True)
        ]
        replies = self._ask(calls, self._timeout)
        return DenseStep(self._join(replies), replies[0].version, replies[0].pause)

    def leave(self, step: int) -> None:
        """Says on all blocks that this trainer takes no step after `step`."""
        request = ps_pb2.LeaveRequest(caller=self._caller(step))
        calls = [
            Call(stub.Leave, request, name)
            for stub, name in zip(self._stubs, self._names, strict=True)
        ]
        rpc.call_all(calls, timeout=self._timeout, stop=self._stop)

    def trainers(self) -> int:
        """Trainers still taking steps, as block 0 sees them."""
        reply = rpc.call(
            self._stubs[0].Stats,
            ps_pb2.StatsRequest(),
            peer=self._names[0],
            timeout=self._timeout,
            stop=self._stop,
        )
        return reply.trainers

    def close(self) -> None:
        """Closes the channels."""
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> DenseClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _caller(self, step: int) -> ps_pb2.Caller:
        return ps_pb2.Caller(step=step, **self._caller_fields)

    def _configured(self) -> list[slice]:
        if not self._places:
            raise Conflict("this client is not configured: call configure first")
        return self._places

    def _ask(
        self, calls: list[Call[ps_pb2.DenseValuesReply]], timeout: float
    ) -> list[ps_pb2.DenseValuesReply]:
        replies = rpc.call_all(calls, timeout=timeout, stop=self._stop)
        return replies

    def _join(self, replies: list[ps_pb2.DenseValuesReply]) -> NDArray[np.float32]:
        places = self._configured()
        values = np.empty(places[-1].stop, dtype=np.float32)
        for place, reply, name in zip(places, replies, self._names, strict=True):
            field = f"{name}: values of the reply"
            values[place] = codec.unpack_floats(reply.values, field, place.stop - place.start)
        return values


def even_slices(size: int, parts: int) -> list[slice]:
    """`parts` contiguous slices of range(size), the first ones longer by one where it doesn't
    divide.
    """
    base, longer = divmod(size, parts)
    starts = [i * base + min(i, longer) for i in range(parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(starts)]
