"""DenseClient: one trainer's access to the flat array of dense parameters, cut into even blocks
over the dense-PS.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ps_service import codec
from ps_service.client.laden import BlockStub
from ps_service.client.local import LocalBlock
from ps_service.client.peers import CALL_SECONDS, CONFIGURE_SECONDS, Peers
from ps_service.own import BlockPush, OwnBlock
from ps_service.ranges import BatchRange
from ps_service.tables import NO_OPTIONS, UpdateOptions
from services.api.manifest import PositionEntry
from services.kit.errors import Conflict, InvalidInput
from services.kit.laden import Laden
from services.kit.rpc_metrics import ClientMetrics
from services.kit.tls import Tls
from services.kit.tracing import Tracing
from services.wire import ps_pb2


@dataclasses.dataclass(frozen=True)
class DenseStep:
    """The answer to a dense push."""

    values: NDArray[np.float32]  # (n,) after the step
    version: int  # steps applied to block 0
    pause: bool  # every trainer of this step asked to pause: stop after it


class DenseSide(Protocol):
    """A trainer's dense side after `configure`, whatever the training mode."""

    def push(
        self,
        grads: NDArray[np.float32],
        *,
        step: int,
        samples: int,
        pause: bool,
        rows: BatchRange | None = None,
    ) -> DenseStep:
        """Takes in this trainer's mean gradient (n,) over `samples` rows, which are `rows` (None
        for none); the parameters of the next step.
        """

    def claim(self, starts: Sequence[PositionEntry], *, step: int) -> list[ps_pb2.ClaimReply]:
        """Takes source partitions over, to go on after `step`; see `client.claim`."""

    def pull(self) -> NDArray[np.float32]:
        """Current values (n,) of the servers."""

    def leave(self, step: int) -> None:
        """This trainer takes no step after `step`."""

    def trainers(self) -> int:
        """Trainers still taking steps."""

    def close(self) -> None:
        """Closes the channels."""


class DenseClient(Peers[BlockStub]):
    """Talks to block i at addresses[i]. Thread-safe once configured."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        generation: int,
        epoch: int,
        rank: int,
        incarnation: int = 0,
        timeout: float = CALL_SECONDS,
        stop: threading.Event | None = None,
        metrics: ClientMetrics | None = None,
        tls: Tls | None = None,
        own: OwnBlock | None = None,
        traces: Tracing | None = None,
    ) -> None:
        """See `Peers`; `own` is the block in this trainer's process, number `rank`."""
        self._own = None if own is None else LocalBlock(own)
        self._direct = None if own is None else rank
        super().__init__(
            "dense-PS",
            BlockStub,
            addresses,
            generation=generation,
            epoch=epoch,
            rank=rank,
            incarnation=incarnation,
            timeout=timeout,
            stop=stop,
            metrics=metrics,
            tls=tls,
            # It has the verbs that are called here.
            own={} if self._own is None else {rank: cast(BlockStub, self._own)},
            traces=traces,
        )
        self._places: list[slice] = []  # of each block in the flat array
        self._versions = [0] * len(self)  # of each block, as of the values read last

    def close(self) -> None:
        """See Peers."""
        super().close()
        if self._own is not None:
            self._own.close()

    def configure(
        self,
        optimizer: str,
        params: Mapping[str, float],
        initial: NDArray[np.float32],
        options: UpdateOptions = NO_OPTIONS,
    ) -> NDArray[np.float32]:
        """Creates all blocks from `initial` (n,), or checks that they agree; returns the values
        that hold.

        These are `initial` for a fresh job, the restored ones after a restore.
        """
        self._places = even_slices(len(initial), len(self))
        requests = enumerate(
            ps_pb2.DenseConfigureRequest(
                caller=self.caller(0),
                optimizer=optimizer,
                params=dict(params),
                values=codec.pack_floats(initial[place]),
                offset=place.start,
                options=options.to_proto(),
            )
            for place in self._places
        )
        replies = self.ask(
            lambda stub: stub.Configure, requests, at_least_seconds=CONFIGURE_SECONDS
        )
        return self._join(replies)

    def pull(self) -> NDArray[np.float32]:
        """Current values (n,)."""
        request = ps_pb2.DensePullRequest(caller=self.caller(0))
        return self._join(self.ask_all(lambda stub: stub.Pull, request))

    def push(
        self,
        grads: NDArray[np.float32],
        *,
        step: int,
        samples: int,
        pause: bool,
        rows: BatchRange | None = None,
    ) -> DenseStep:
        """Pushes this trainer's mean gradient (n,) over `samples` rows, which are `rows` (None for
        none); returns once all trainers' is applied, in mode async once this one is.
        """
        places = self.places(grads, "grads")

        def request(block: int, place: slice) -> Laden | BlockPush:
            message = ps_pb2.DensePushRequest(
                caller=self.caller(step),
                samples=samples,
                pause=pause,
                read_version=self._versions[block],
                range=rows.to_proto() if rows is not None else None,
            )
            if block == self._direct:
                return BlockPush(message, grads[place])
            return Laden(message, [codec.view_floats(grads[place])])

        # The own block comes last: it may work on this thread, and the others meanwhile.
        order = sorted(range(len(self)), key=lambda block: block == self._direct)
        answers = self.ask(lambda stub: stub.Push, [(i, request(i, places[i])) for i in order])
        replies = [answers[order.index(i)] for i in range(len(self))]
        return DenseStep(self._join(replies), replies[0].version, replies[0].pause)

    def claim(self, starts: Sequence[PositionEntry], *, step: int) -> list[ps_pb2.ClaimReply]:
        """Takes source partitions over, to go on after `step`; see `client.claim`."""
        return self.ask_all(lambda stub: stub.Claim, self.claim_request(starts, step))

    def leave(self, step: int) -> None:
        """Says on all blocks that this trainer takes no step after `step`."""
        self.ask_all(lambda stub: stub.Leave, ps_pb2.LeaveRequest(caller=self.caller(step)))

    def trainers(self) -> int:
        """Trainers still taking steps, as block 0 sees them."""
        (reply,) = self.ask(lambda stub: stub.Stats, [(0, ps_pb2.StatsRequest())])
        return int(reply.trainers)

    def places(self, values: NDArray[np.float32], field: str) -> list[slice]:
        """Where each block lies in the flat array. Raises InvalidInput that names `field` unless
        `values` is as long as that array, Conflict before `configure`.
        """
        places = self._configured()
        if values.shape != (places[-1].stop,):
            raise InvalidInput(f"{field} has shape {values.shape}, expected ({places[-1].stop},)")
        return places

    def _configured(self) -> list[slice]:
        if not self._places:
            raise Conflict("this client is not configured: call configure first")
        return self._places

    def _join(self, replies: Sequence[Any]) -> NDArray[np.float32]:
        """Values (n,) of all blocks' DenseValuesReply; the array may be read-only."""
        places = self._configured()
        self._versions = [reply.version for reply in replies]
        parts = [
            codec.unpack_floats(
                reply.values, f"{name}: values of the reply", place.stop - place.start
            )
            for place, reply, name in zip(places, replies, self.names, strict=True)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def even_slices(size: int, parts: int) -> list[slice]:
    """`parts` contiguous slices of range(size), the first ones longer by one where it doesn't
    divide.
    """
    base, longer = divmod(size, parts)
    starts = [i * base + min(i, longer) for i in range(parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(starts)]
