"""The verbs that a trainer calls each step, as a lane takes them: gradients and rows lie beside
their messages. What the arrays of each verb are is in ps.proto, "Lanes"; the client's end is
`client.lanes`.
"""

from __future__ import annotations

from ps_service import codec
from ps_service.server.dense import DenseServicer
from ps_service.server.sparse import SparseServicer
from services.kit.errors import InvalidInput
from services.kit.lane import Laden
from services.kit.lane_server import LaneVerb, LaneVerbs
from services.wire import ps_pb2

SPARSE_PULL = "/embermesh.wire.v1.SparsePs/Pull"
SPARSE_PUSH = "/embermesh.wire.v1.SparsePs/Push"
DENSE_PUSH = "/embermesh.wire.v1.DensePs/Push"


def sparse_verbs(servicer: SparseServicer) -> LaneVerbs:
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

    verbs = {
        SPARSE_PULL: LaneVerb(ps_pb2.SparsePullRequest, pull, keeps=False),
        # One that waits for others is kept for them, also when its caller has given it up.
        SPARSE_PUSH: LaneVerb(ps_pb2.SparsePushRequest, push, keeps=servicer.pushes_wait),
    }
    return LaneVerbs(verbs, codec.room)


def dense_verbs(servicer: DenseServicer) -> LaneVerbs:
    """Push of a block."""

    def push(request: ps_pb2.DensePushRequest, arrays: list[memoryview]) -> Laden:
        _expect(arrays, 1)
        stepped = servicer.take(request, arrays[0])
        reply = ps_pb2.DenseValuesReply(version=stepped.version, pause=stepped.pause)
        return Laden(reply, [memoryview(stepped.values)])

    # Whether pushes wait for each other changes with the trainers that are there.
    return LaneVerbs({DENSE_PUSH: LaneVerb(ps_pb2.DensePushRequest, push, keeps=True)}, codec.room)


def _expect(arrays: list[memoryview], count: int) -> None:
    if len(arrays) != count:
        raise InvalidInput(f"arrays: {len(arrays)} beside the request, expected {count}")
