"""What the sparse-PS keeps of one trainer's push, validated, until it is applied. Knows neither
tables nor steps' order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ps_service import codec
from ps_service.ranges import BatchRange
from services.kit.errors import InvalidInput
from services.wire import ps_pb2


@dataclasses.dataclass(frozen=True)
class Gradient:
    """One trainer's validated push."""

    samples: int
    incarnation: int
    range: BatchRange | None
    step: int
    counts: NDArray[np.uint32]  # (T,)
    keys: NDArray[np.uint64]
    grads: NDArray[np.float32]
    usage: NDArray[np.float32] | None  # (2, n) shows and clicks of the keys; None: one show each
    event_time: int


def usage_of(request: ps_pb2.SparsePushRequest, keys: int) -> NDArray[np.float32] | None:
    """(2, keys) shows and clicks, if the request has them."""
    if not request.shows and not request.clicks:
        return None
    shows = codec.unpack_floats(request.shows, "shows", keys)
    clicks = codec.unpack_floats(request.clicks, "clicks", keys)
    fits = np.isfinite(shows) & (clicks >= 0) & (clicks <= shows)
    if not fits.all():
        at = int(np.argmin(fits))
        raise InvalidInput(
            f"shows and clicks of key {at} are {shows[at]} and {clicks[at]}, "
            "must fulfil 0 <= clicks <= shows"
        )
    return np.stack([shows, clicks])


def joined_usage(gradients: Sequence[Gradient]) -> NDArray[np.float32] | None:
    if all(g.usage is None for g in gradients):
        return None
    once = np.array([[1], [0]], np.float32)
    return np.concatenate(
        [np.repeat(once, len(g.keys), 1) if g.usage is None else g.usage for g in gradients], axis=1
    )
