"""The verbs that a trainer calls each step, and the fields of their messages that travel beside
them: gradients and rows. Both ends know them from here.
"""

from __future__ import annotations

from services.kit.laden import Method
from services.wire import ps_pb2

SPARSE_PULL = Method(
    "/embermesh.wire.v1.SparsePs/Pull",
    ps_pb2.SparsePullRequest,
    (),
    ps_pb2.SparsePullReply,
    (ps_pb2.SparsePullReply.VALUES_FIELD_NUMBER,),
)
SPARSE_PUSH = Method(
    "/embermesh.wire.v1.SparsePs/Push",
    ps_pb2.SparsePushRequest,
    (ps_pb2.SparsePushRequest.GRADS_FIELD_NUMBER,),
    ps_pb2.SparsePushReply,
    (ps_pb2.SparsePushReply.THEN_FIELD_NUMBER, ps_pb2.SparsePullReply.VALUES_FIELD_NUMBER),
)
DENSE_PUSH = Method(
    "/embermesh.wire.v1.DensePs/Push",
    ps_pb2.DensePushRequest,
    (ps_pb2.DensePushRequest.GRADS_FIELD_NUMBER,),
    ps_pb2.DenseValuesReply,
    (ps_pb2.DenseValuesReply.VALUES_FIELD_NUMBER,),
)
