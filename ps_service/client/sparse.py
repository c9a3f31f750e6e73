"""SparseClient: one trainer's access to the rows of all shards. A verb asks all shards at once and
joins the replies.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ps_service import codec
from ps_service.client.peers import CALL_SECONDS, CONFIGURE_SECONDS, Peers
from ps_service.client.plan import KeyPlan, ShardSlice
from ps_service.ranges import BatchRange
from ps_service.tables import TableSpec
from services.api.manifest import PositionEntry
from services.kit.errors import InvalidInput
from services.kit.rpc_metrics import ClientMetrics
from services.kit.tls import Tls
from services.wire import ps_pb2, ps_pb2_grpc


@dataclasses.dataclass(frozen=True)
class PushOutcome:
    """What a push led to, summed over the shards. In mode sync the counts are those of all
    trainers' step.
    """

    applied: int  # keys updated
    missing: int  # keys without a row, skipped
    duplicate: int  # shards that had applied this (rank, step) or these rows before


@dataclasses.dataclass(frozen=True)
class Removed:
    """Keys that one shard removed."""

    counts: list[int]  # keys per table, T entries
    keys: NDArray[np.uint64]  # table after table
    complete: bool  # no other key was removed since the last call


class SparseClient(Peers[ps_pb2_grpc.SparsePsStub]):
    """Talks to shard i at addresses[i]. Thread-safe."""

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
        tls: Tls | None = None,
        clock: Callable[[], float] = time.time,
        values: str = "fp32",
        metrics: ClientMetrics | None = None,
    ) -> None:
        """See `Peers`. `clock` gives the event time of batches that have none, in Unix seconds.
        `values` is how rows and gradients travel: fp32, fp16 or scaled-fp16.
        """
        self._clock = clock
        self._coding = codec.value_coding(values)
        super().__init__(
            "sparse-PS",
            ps_pb2_grpc.SparsePsStub,
            addresses,
            generation=generation,
            epoch=epoch,
            rank=rank,
            incarnation=incarnation,
            timeout=timeout,
            stop=stop,
            metrics=metrics,
            tls=tls,
        )

    def configure(self, tables: Sequence[TableSpec], seed: int) -> int:
        """Creates the tables on all shards, or checks that they agree; returns the rows restored
        over all shards.
        """
        request = ps_pb2.SparseConfigureRequest(
            caller=self.caller(0), tables=[t.to_proto() for t in tables], seed=seed
        )
        replies = self.ask_all(
            lambda stub: stub.Configure, request, at_least_seconds=CONFIGURE_SECONDS
        )
        return sum(r.restored_rows for r in replies)

    def pull(
        self, plan: KeyPlan, *, step: int, read_only: bool = False, event_time: int | None = None
    ) -> NDArray[np.float32]:
        """Rows of the plan's keys, flat (plan.value_floats,). `read_only` never inserts a missing
        key, and makes no row younger. `event_time` is that of the batch in Unix seconds, default:
        now.
        """
        self._check(plan)
        seconds = self._event_time(event_time)
        asked = [i for i, s in enumerate(plan.shards) if not s.empty]
        requests = (
            ps_pb2.SparsePullRequest(
                caller=self.caller(step),
                read_only=read_only,
                counts=plan.shards[i].counts,
                keys=plan.shards[i].keys,
                key_coding=plan.shards[i].key_coding,
                value_coding=self._coding,
                event_time=seconds,
            )
            for i in asked
        )
        replies = self.ask(lambda stub: stub.Pull, zip(asked, requests, strict=True))
        values = np.empty(plan.value_floats, dtype=np.float32)
        for i, reply in zip(asked, replies, strict=True):
            place = plan.shards[i].values
            field = f"{self.names[i]}: values of the reply"
            codec.unpack_values_into(values[place], reply.values, self._coding, field)
        return values

    def push(
        self,
        plan: KeyPlan,
        grads: NDArray[np.float32],
        *,
        step: int,
        read_step: int,
        samples: int,
        rows: BatchRange | None = None,
        event_time: int | None = None,
    ) -> PushOutcome:
        """Pushes flat gradients (plan.value_floats,) of the step; every shard is told, also of an
        empty share.

        `samples` are the rows of the batch the gradients are means over, `rows` which they are
        (None for none); `read_step` is the step the rows were pulled at; `event_time` as in pull.
        """
        self._check(plan)
        if grads.shape != (plan.value_floats,):
            raise InvalidInput(f"grads has shape {grads.shape}, expected ({plan.value_floats},)")

        seconds, counts = self._event_time(event_time), plan.key_counts

        def request(part: ShardSlice) -> ps_pb2.SparsePushRequest:
            packed = codec.pack_values(grads[part.values], self._coding)
            return ps_pb2.SparsePushRequest(
                caller=self.caller(step),
                samples=samples,
                counts=part.counts,
                keys=part.keys,
                key_coding=part.key_coding,
                grads=packed.data,
                value_coding=self._coding,
                clipped=packed.clipped,
                flushed=packed.flushed,
                read_step=read_step,
                event_time=seconds,
                shows=codec.pack_floats(counts.shows[part.key_range]) if counts else b"",
                clicks=codec.pack_floats(counts.clicks[part.key_range]) if counts else b"",
                range=rows.to_proto() if rows is not None else None,
            )

        requests = enumerate(request(part) for part in plan.shards)
        replies = self.ask(lambda stub: stub.Push, requests)
        return PushOutcome(
            applied=sum(r.applied for r in replies),
            missing=sum(r.missing for r in replies),
            duplicate=sum(r.duplicate for r in replies),
        )

    def removed(self) -> list[Removed]:
        """Keys whose rows were removed since the last call, of each shard; for one consumer."""
        request = ps_pb2.RemovedRequest(caller=self.caller(0))
        replies = self.ask_all(lambda stub: stub.Removed, request)
        return [
            Removed(
                list(reply.counts),
                codec.unpack_keys(reply.keys, f"{name}: keys", sum(reply.counts)),
                reply.complete,
            )
            for reply, name in zip(replies, self.names, strict=True)
        ]

    def claim(self, starts: Sequence[PositionEntry], *, step: int) -> list[ps_pb2.ClaimReply]:
        """Takes source partitions over, to go on after `step`; see `client.claim`."""
        return self.ask_all(lambda stub: stub.Claim, self.claim_request(starts, step))

    def leave(self, step: int) -> None:
        """Says on all shards that this trainer takes no step after `step`."""
        request = ps_pb2.LeaveRequest(caller=self.caller(step))
        self.ask_all(lambda stub: stub.Leave, request)

    def _event_time(self, given: int | None) -> int:
        return int(self._clock()) if given is None else given

    def _check(self, plan: KeyPlan) -> None:
        if len(plan.shards) != len(self):
            raise InvalidInput(f"the plan is for {len(plan.shards)} shards, not {len(self)}")
