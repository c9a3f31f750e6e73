"""SparseClient: one trainer's access to the rows of all shards. A verb asks all shards at once and
joins the replies.

Every call has a deadline; a shard that is away is retried within it. Repeating is safe: reads
change nothing that a repeat would not, and pushes are numbered by (rank, step).
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from ps_service import codec
from ps_service.client.plan import KeyPlan, ShardSlice
from ps_service.tables import TableSpec
from services.kit import rpc
from services.kit.errors import InvalidInput
from services.kit.rpc import Call
from services.wire import ps_pb2, ps_pb2_grpc

CALL_SECONDS = 150.0  # longer than a server waits for missing trainers, so that its answer arrives
CONFIGURE_SECONDS = 1_800.0  # a restore reads the shard's whole share of a checkpoint


@dataclasses.dataclass(frozen=True)
class PushOutcome:
    """What a push led to, summed over the shards. In mode sync the counts are those of all
    trainers' step.
    """

    applied: int  # keys updated
    missing: int  # keys without a row, skipped
    duplicate: int  # shards that had applied this (rank, step) before


class SparseClient:
    """Talks to shard i at addresses[i]. Thread-safe."""

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
        self._names = [f"sparse-PS {i} at {a}" for i, a in enumerate(addresses)]
        self._channels = [rpc.connect(a) for a in addresses]
        self._stubs = [ps_pb2_grpc.SparsePsStub(c) for c in self._channels]
        self._generation, self._epoch, self._rank = generation, epoch, rank
        self._timeout, self._stop = timeout, stop

    def configure(self, tables: Sequence[TableSpec], seed: int) -> int:
        """Creates the tables on all shards, or checks that they agree; returns the rows restored
        over all shards.
        """
        request = ps_pb2.SparseConfigureRequest(
            caller=self._caller(0), tables=[t.to_proto() for t in tables], seed=seed
        )
        calls = [
            Call(stub.Configure, request, name)
            for stub, name in zip(self._stubs, self._names, strict=True)
        ]
        replies = rpc.call_all(
            calls, timeout=max(self._timeout, CONFIGURE_SECONDS), stop=self._stop
        )
        return sum(r.restored_rows for r in replies)

    def pull(self, plan: KeyPlan, *, step: int, read_only: bool = False) -> NDArray[np.float32]:
        """Rows of the plan's keys, flat (plan.value_floats,). `read_only` never inserts a missing
        key.
        """
        self._check(plan)
        asked = [i for i, s in enumerate(plan.shards) if not s.empty]
        calls = [
            Call(
                self._stubs[i].Pull,
                ps_pb2.SparsePullRequest(
                    caller=self._caller(step),
                    read_only=read_only,
                    counts=plan.shards[i].counts,
                    keys=plan.shards[i].keys,
                ),
                self._names[i],
            )
            for i in asked
        ]
        replies = rpc.call_all(calls, timeout=self._timeout, stop=self._stop)
        values = np.empty(plan.value_floats, dtype=np.float32)
        for i, reply in zip(asked, replies, strict=True):
            place = plan.shards[i].values
            field = f"{self._names[i]}: values of the reply"
            values[place] = codec.unpack_floats(reply.values, field, place.stop - place.start)
        return values

    def push(
        self,
        plan: KeyPlan,
        grads: NDArray[np.float32],
        *,
        step: int,
        read_step: int,
        samples: int,
    ) -> PushOutcome:
        """Pushes flat gradients (plan.value_floats,) of the step; every shard is told, also of an
        empty share.

        `samples` are the rows of the batch the gradients are means over; `read_step` is the step
        the rows were pulled at.
        """
        self._check(plan)
        if grads.shape != (plan.value_floats,):
            raise InvalidInput(f"grads has shape {grads.shape}, expected ({plan.value_floats},)")

        def request(part: ShardSlice) -> ps_pb2.SparsePushRequest:
            return ps_pb2.SparsePushRequest(
                caller=self._caller(step),
                samples=samples,
                counts=part.counts,
                keys=part.keys,
                grads=codec.pack_floats(grads[part.values]),
                read_step=read_step,
            )

        calls = [
            Call(stub.Push, request(part), name)
            for stub, part, name in zip(self._stubs, plan.shards, self._names, strict=True)
        ]
        replies = rpc.call_all(calls, timeout=self._timeout, stop=self._stop)
        return PushOutcome(
            applied=sum(r.applied for r in replies),
            missing=sum(r.missing for r in replies),
            duplicate=sum(r.duplicate for r in replies),
        )

    def leave(self, step: int) -> None:
        """Says on all shards that this trainer takes no step after `step`."""
        request = ps_pb2.LeaveRequest(caller=self._caller(step))
        calls = [
            Call(stub.Leave, request, name)
            for stub, name in zip(self._stubs, self._names, strict=True)
        ]
        rpc.call_all(calls, timeout=self._timeout, stop=self._stop)

    def close(self) -> None:
        """Closes the channels."""
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> SparseClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _caller(self, step: int) -> ps_pb2.Caller:
        return ps_pb2.Caller(
            generation=self._generation, epoch=self._epoch, rank=self._rank, step=step
        )

    def _check(self, plan: KeyPlan) -> None:
        if len(plan.shards) != len(self._stubs):
            raise InvalidInput(f"the plan is for {len(plan.shards)} shards, not {len(self._stubs)}")
