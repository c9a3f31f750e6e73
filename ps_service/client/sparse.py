"""SparseClient: one trainer's access to the rows of all shards. A verb asks all shards at once and
joins the replies.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ps_service import codec
from ps_service.client.laden import ShardStub
from ps_service.client.local import LocalShard
from ps_service.client.peers import CALL_SECONDS, CONFIGURE_SECONDS, Peers
from ps_service.client.plan import KeyPart, KeyPlan, ShardSlice
from ps_service.own import OwnShard, RowPush, RowRead
from ps_service.ranges import BatchRange
from ps_service.tables import TableSpec
from services.api.manifest import PositionEntry
from services.kit.errors import InvalidInput
from services.kit.laden import Laden
from services.kit.rpc_metrics import ClientMetrics
from services.kit.tls import Tls
from services.kit.tracing import Tracing
from services.wire import ps_pb2


@dataclasses.dataclass(frozen=True)
class PushOutcome:
    """What a push led to, summed over the shards. In mode sync the counts are those of all
    trainers' step.
    """

    applied: int  # keys updated
    missing: int  # keys without a row, skipped
    duplicate: int  # shards that had applied this (rank, step) or these rows before
    rows: list[NDArray[np.float32]]  # of each NextRead of the push (value_floats,)


@dataclasses.dataclass(frozen=True)
class NextRead:
    """Rows to read for a later step as soon as the push they come with is applied."""

    keys: KeyPart
    step: int


@dataclasses.dataclass(frozen=True)
class Removed:
    """Keys that one shard removed."""

    counts: list[int]  # keys per table, T entries
    keys: NDArray[np.uint64]  # table after table
    complete: bool  # no other key was removed since the last call


class SparseClient(Peers[ShardStub]):
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
        traces: Tracing | None = None,
        clock: Callable[[], float] = time.time,
        values: str = "fp32",
        metrics: ClientMetrics | None = None,
        own: OwnShard | None = None,
    ) -> None:
        """See `Peers`. `clock` gives the event time of batches that have none, in Unix seconds;
        `values` is how rows and gradients travel: fp32, fp16 or scaled-fp16; `own` is the shard in
        this trainer's process, number `rank`.
        """
        self._clock = clock
        self._coding = codec.value_coding(values)
        self._own = None if own is None else LocalShard(own)
        # Which shard takes arrays as they are. Its rows and gradients are rounded as those of
        # others are: where they travel with fewer bits, by messages.
        exact = self._coding == ps_pb2.VALUE_CODING_FP32
        self._embedded = rank if own is not None else None
        self._direct = self._embedded if exact else None
        super().__init__(
            "sparse-PS",
            ShardStub,
            addresses,
            generation=generation,
            epoch=epoch,
            rank=rank,
            incarnation=incarnation,
            timeout=timeout,
            stop=stop,
            metrics=metrics,
            tls=tls,
            traces=traces,
            # It has the verbs that are called here.
            own={} if self._own is None else {rank: cast(ShardStub, self._own)},
        )

    def close(self) -> None:
        """See Peers."""
        super().close()
        if self._own is not None:
            self._own.close()

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
        self,
        keys: KeyPlan | KeyPart,
        *,
        step: int,
        read_only: bool = False,
        event_time: int | None = None,
    ) -> NDArray[np.float32]:
        """Rows of a plan's keys, or of a part of them, flat (keys.value_floats,); the array may be
        read-only. `read_only` never inserts a missing key, and makes no row younger. `event_time`
        is that of the batch in Unix seconds, default: now.
        """
        self._check(keys)
        seconds = self._event_time(event_time)
        asked = [i for i, s in enumerate(keys.shards) if not s.empty]
        requests = {
            i: self._read(i, keys.shards[i], step, seconds, read_only=read_only) for i in asked
        }
        replies = self._ask_shards(lambda stub: stub.Pull, requests)
        return self._rows(keys, list(zip(asked, replies, strict=True)))

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
        then: Sequence[NextRead] = (),
    ) -> PushOutcome:
        """Pushes flat gradients (plan.value_floats,) of the step; every shard is told, also of an
        empty share.

        `samples` are the rows of the batch the gradients are means over, `rows` which they are
        (None for none); `read_step` is the step the rows were pulled at; `event_time` as in pull.
        What `then` names is pulled by the same call, once the push is applied.
        """
        self._check(plan)
        if grads.shape != (plan.value_floats,):
            raise InvalidInput(f"grads has shape {grads.shape}, expected ({plan.value_floats},)")

        seconds, counts = self._event_time(event_time), plan.key_counts

        def request(shard: int, part: ShardSlice) -> ps_pb2.SparsePushRequest | Laden | RowPush:
            then_read = [self._read(shard, n.keys.shards[shard], n.step, seconds) for n in then]
            message = ps_pb2.SparsePushRequest(
                caller=self.caller(step),
                samples=samples,
                value_coding=self._coding,
                read_step=read_step,
                event_time=seconds,
                shows=codec.pack_floats(counts.shows[part.key_range]) if counts else b"",
                clicks=codec.pack_floats(counts.clicks[part.key_range]) if counts else b"",
                range=rows.to_proto() if rows is not None else None,
            )
            if shard == self._direct:
                return RowPush(message, part.counts, part.plain_keys, grads[part.values], then_read)
            message.counts.extend(part.counts.tolist())
            message.keys, message.key_coding = part.packed_keys
            message.then.extend(then_read)
            return self._encoded(shard, message, grads[part.values])

        requests = {i: request(i, part) for i, part in enumerate(plan.shards)}
        replies = self._ask_shards(lambda stub: stub.Push, requests)
        return PushOutcome(
            applied=sum(r.applied for r in replies),
            missing=sum(r.missing for r in replies),
            duplicate=sum(r.duplicate for r in replies),
            rows=[
                self._rows(read.keys, list(enumerate(r.then[i] for r in replies)))
                for i, read in enumerate(then)
            ],
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

    def _ask_shards(
        self, verb: Callable[[ShardStub], Any], requests: Mapping[int, Any]
    ) -> list[Any]:
        """Replies in the order of `requests`, by shard. The one that works on this thread comes
        last, so that the others work meanwhile.
        """
        order = sorted(requests, key=lambda shard: shard == self._direct)
        replies = dict(zip(order, self.ask(verb, [(i, requests[i]) for i in order]), strict=True))
        return [replies[i] for i in requests]

    def _encoded(
        self, shard: int, message: ps_pb2.SparsePushRequest, grads: NDArray[np.float32]
    ) -> ps_pb2.SparsePushRequest | Laden:
        """The push with its gradients, in this client's coding, where the shard takes them."""
        if shard == self._embedded:
            packed = codec.pack_values(grads, self._coding)
            message.grads, message.clipped, message.flushed = packed
            return message
        laid = codec.view_values(grads, self._coding)
        message.clipped, message.flushed = laid.clipped, laid.flushed
        return Laden(message, [laid.data])

    def _read(
        self, shard: int, part: ShardSlice, step: int, seconds: int, *, read_only: bool = False
    ) -> Any:
        """A SparsePullRequest, or the RowRead for the shard that takes one."""
        message = ps_pb2.SparsePullRequest(
            caller=self.caller(step),
            read_only=read_only,
            value_coding=self._coding,
            event_time=seconds,
        )
        if shard == self._direct:
            return RowRead(message, part.counts, part.plain_keys)
        message.counts.extend(part.counts.tolist())
        message.keys, message.key_coding = part.packed_keys
        return message

    def _rows(
        self, keys: KeyPlan | KeyPart, replies: Sequence[tuple[int, Any]]
    ) -> NDArray[np.float32]:
        """Values of (shard, reply), side by side; shards without keys may be left out."""
        if self._coding == ps_pb2.VALUE_CODING_FP32 and len(replies) == 1:  # nothing to join
            shard, reply = replies[0]
            field = f"{self.names[shard]}: values of the reply"
            return codec.unpack_floats(reply.values, field, keys.value_floats)
        values = np.empty(keys.value_floats, dtype=np.float32)
        for i, reply in replies:
            place = keys.shards[i].values
            field = f"{self.names[i]}: values of the reply"
            codec.unpack_values_into(values[place], reply.values, self._coding, field)
        return values

    def _event_time(self, given: int | None) -> int:
        return int(self._clock()) if given is None else given

    def _check(self, keys: KeyPlan | KeyPart) -> None:
        if len(keys.shards) != len(self):
            raise InvalidInput(f"the plan is for {len(keys.shards)} shards, not {len(self)}")
