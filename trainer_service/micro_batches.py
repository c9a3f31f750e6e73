"""A step's input, and its pieces: micro-batches that run at the same time, each on a core of its
own. Cores that share every single product of matrices wait for each other after each of them.

Arrays and tensors lie in the same memory: what is written into an array, the next call reads
without a copy. What is computed from them is not known here.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]
T = TypeVar("T")

_ALIGNMENT = 64  # bytes: what TensorFlow's kernels may expect of a tensor's address
_ROWS_ALIGNED = _ALIGNMENT // np.dtype(np.float32).itemsize  # so many end where a tensor may begin
_WORTH_A_CORE = 512  # rows of a micro-batch at least: with fewer, products of matrices get slow


def configure_threads(trainers: int, batch_size: int) -> int:
    """Gives TensorFlow this trainer's share of the cores; returns in how many micro-batches a step
    of `batch_size` rows is to run. Call before the first TensorFlow operation.

    The local target puts all trainers of a job on one machine: with TensorFlow's default (a pool as
    large as the machine in each of them) they fight for cores in every matrix product; two deepfm
    trainers on two cores ran 15 % faster with one thread each.
    """
    share = max(1, len(os.sched_getaffinity(0)) // trainers)
    count = max(1, min(share, batch_size // _WORTH_A_CORE))
    tf.config.threading.set_intra_op_parallelism_threads(max(1, share // count))
    tf.config.threading.set_inter_op_parallelism_threads(share)
    log.info("%d threads for TensorFlow, %d micro-batches a step", share, count)
    return count


@dataclass(frozen=True)
class MicroBatch:
    """Tensors of `size` rows of the input, from `first`."""

    first: int
    inputs: list[Any]  # of the network
    labels: Any


class MicroBatches:
    """The input of up to `batch_size` samples, in `count` micro-batches of equal `size`; the last
    ones may lie behind the batch.

    Not thread-safe: no micro-batch may run while the input is written.
    """

    def __init__(
        self, count: int, *, batch_size: int, dense: int, width: int, joined: bool
    ) -> None:
        """`dense`, `width` and `joined` as in TrainStep."""
        each = -(-batch_size // count)
        self.size = size = -(-each // _ROWS_ALIGNED) * _ROWS_ALIGNED
        total = size * count
        self.rows = aligned(total, width)
        self._dense = self.rows[:, :dense] if joined else aligned(total, dense)
        self._labels = aligned(total)
        inputs = [self.rows] if joined else [self._dense, self.rows]
        # Of the network's inputs, and of the labels of a micro-batch.
        self.specs = [tf.TensorSpec((size, array.shape[1]), tf.float32) for array in inputs]
        self.labels_spec = tf.TensorSpec((size,), tf.float32)
        self._pieces = [
            MicroBatch(
                first,
                [tensor(array[first : first + size]) for array in inputs],
                tensor(self._labels[first : first + size]),
            )
            for first in range(0, total, size)
        ]
        self._others = futures.ThreadPoolExecutor(max(1, count - 1), "micro-batch")

    def fill(self, dense: Floats, labels: Floats | None = None) -> None:
        """Writes all but the rows of n = len(dense) samples, and zeros behind them."""
        n = len(dense)
        self._dense[:n] = dense
        # Padding must hold numbers: a stale inf times the weight 0 would still be NaN.
        self._dense[n:] = 0.0
        self.rows[n:] = 0.0
        self._labels[:n] = 0.0 if labels is None else labels
        self._labels[n:] = 0.0

    def run(self, samples: int, function: Callable[[MicroBatch], T]) -> list[T]:
        """What `function` gives for each micro-batch that has one of the samples; the first runs on
        this thread.
        """
        first, *others = (piece for piece in self._pieces if piece.first < samples)
        waiting = [self._others.submit(function, piece) for piece in others]
        try:
            own = function(first)
        finally:
            futures.wait(waiting)  # whatever came of it: they read the input
        return [own, *(each.result() for each in waiting)]


def aligned(*shape: int) -> Floats:
    """Zeros where a tensor may lie."""
    size = math.prod(shape) * np.dtype(np.float32).itemsize
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    array: Floats = memory[start : start + size].view(np.float32).reshape(shape)
    return array


def tensor(array: Floats) -> Any:
    """A tensor in the memory of `aligned` zeros, or of rows of them."""
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
