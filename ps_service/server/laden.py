"""The verbs of `laden_verbs` as servers answer them: arrays go from what has come to the shard or
block and from there to what is sent, past the messages. The other end is `client.laden`.
"""

from __future__ import annotations

from ps_service import codec
from ps_service.laden_verbs import DENSE_PUSH, SPARSE_PULL, SPARSE_PUSH
from ps_service.server.dense import DenseServicer
from ps_service.server.sparse import SparseServicer
from services.kit.errors import InvalidInput
from services.kit.laden import Laden
from services.kit.rpc_answer import LadenVerb, LadenVerbs
from services.wire import ps_pb2


def sparse_verbs(servicer: SparseServicer) -> LadenVerbs:
    """Pull and Push of a shard."""

    def pull(request: ps_pb2.SparsePullRequest, arrays: list[memoryview]) -> Laden:
        _expect(arrays, 0)
        return Laden(ps_pb2.SparsePullReply(), [memoryview(servicer.read(request))])

    def push(request: ps_pb2.SparsePushRequest, arrays: list[memoryview]) -> Laden:
        _expect(arrays, 1)
        pushed = servicer.take(request, arrays[0])
        reply = ps_pb2.SparsePushReply(
            applied=pushed.applied, missing=pushed.missing, duplicate=pushed.duplicate
        )
        return Laden(reply, [memoryview(rows.values) for rows in pushed.then])

    verbs = [
        LadenVerb(SPARSE_PULL, pull, keeps=False),
        # One that waits for others is kept for them, also when its caller has given it up.
        LadenVerb(SPARSE_PUSH, push, keeps=servicer.pushes_wait),
    ]
    return LadenVerbs(verbs, codec.room)


def dense_verbs(servicer: DenseServicer) -> LadenVerbs:
    """Push of a block."""

    def push(request: ps_pb2.DensePushRequest, arrays: list[memoryview]) -> Laden:
        _expect(arrays, 1)
        stepped = servicer.take(request, arrays[0])
        reply = ps_pb2.DenseValuesReply(version=stepped.version, pause=stepped.pause)
        return Laden(reply, [memoryview(stepped.values)])

    # Whether pushes wait for each other changes with the trainers that are there.
    return LadenVerbs([LadenVerb(DENSE_PUSH, push, keeps=True)], codec.room)


def _expect(arrays: list[memoryview], count: int) -> None:
    if len(arrays) != count:
        raise InvalidInput(f"arrays: {len(arrays)} beside the request, expected {count}")
