"""Requests of the sparse-PS as arrays, checked against its tables before anything changes. Knows
neither rows nor the order of steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ps_service import codec
from ps_service.own import RowRead
from ps_service.ranges import BatchRange
from ps_service.server.gradient import Gradient, usage_of
from services.kit.errors import InvalidInput
from services.kit.rpc import MAX_MESSAGE_BYTES
from services.wire import ps_pb2

_REPLY_OVERHEAD = 64  # bytes of a reply's message besides its values


def read_of(request: ps_pb2.SparsePullRequest, dims: NDArray[np.int64]) -> RowRead:
    """The pull; `dims` (T,) are the floats of a row of each table. Raises InvalidInput for arrays
    that don't fit, and for rows that no message holds.
    """
    counts, floats = _counts(request.counts, dims)
    size = codec.value_bytes(request.value_coding, floats, "value_coding")
    if size + _REPLY_OVERHEAD > MAX_MESSAGE_BYTES:
        raise InvalidInput(
            f"counts ask for {size} bytes of rows, a message holds {MAX_MESSAGE_BYTES}"
        )
    keys = codec.unpack_table_keys(request.keys, request.key_coding, "keys", counts)
    return RowRead(request, counts, keys)


def gradient_of(
    request: ps_pb2.SparsePushRequest, grads: bytes | memoryview, dims: NDArray[np.int64]
) -> Gradient:
    """The push, whose gradients are `grads`, in the request's coding; as `read_of`."""
    counts, floats = _counts(request.counts, dims)
    keys = codec.unpack_table_keys(request.keys, request.key_coding, "keys", counts)
    values = codec.unpack_values(grads, request.value_coding, "grads", floats)
    return gradient_with(request, counts, keys, values)


def gradient_with(
    request: ps_pb2.SparsePushRequest,
    counts: NDArray[np.uint32],
    keys: NDArray[np.uint64],
    grads: NDArray[np.float32],
) -> Gradient:
    """The push of these arrays, whatever the request has."""
    step = request.caller.step
    if request.read_step > step:
        raise InvalidInput(f"read_step is {request.read_step}, must be <= step {step}")
    return Gradient(
        samples=request.samples,
        incarnation=request.caller.incarnation,
        range=BatchRange.from_proto(request.range) if request.HasField("range") else None,
        step=step,
        counts=counts,
        keys=keys,
        grads=grads,
        usage=usage_of(request, len(keys)),
        event_time=request.event_time,
    )


def _counts(counts: Sequence[int], dims: NDArray[np.int64]) -> tuple[NDArray[np.uint32], int]:
    """counts as (T,) uint32, and the floats that rows of so many keys have."""
    if len(counts) != len(dims):
        raise InvalidInput(f"counts has {len(counts)} entries, expected {len(dims)} tables")
    array = np.array(counts, dtype=np.uint32)
    return array, int(array @ dims)
