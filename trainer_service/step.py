"""The compiled training step: dense tensors of fixed shape in, loss and gradients out. One of two
places that see TensorFlow.

Rows arrive gathered and leave as gradients of the gathered matrix; the network's own parameters
arrive and leave as one flat float32 vector. Which keys, tables and servers stand behind them is not
known here, and no optimizer runs here: the parameter servers apply the gradients.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import Any, Literal

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from services.kit.errors import EmbermeshError, InvalidInput
from trainer_service.faster import second_is_faster

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]

_ALIGNMENT = 64  # bytes: what TensorFlow's kernels may expect of a tensor's address
_WORTH_A_CORE = 512  # rows of a micro-batch at least: with fewer, products of matrices get slow
_ROWS_ALIGNED = _ALIGNMENT // 4  # as many rows of float32 end where a tensor may begin


class Diverged(EmbermeshError):
    """Loss or gradient is no longer a finite number."""


@dataclass(frozen=True)
class StepResult:
    """What one step of n samples gives; gradients are those of the mean loss over the n samples.

    Arrays look into TensorFlow's memory: they are read-only.
    """

    loss: float
    probabilities: Floats  # (n,), before the update: test, then train
    # (n, width), those of joined dense features among them, in pieces of a micro-batch
    row_grads: tuple[Floats, ...]
    dense_grads: Floats  # (parameters,)


def configure_threads(trainers: int, batch_size: int) -> int:
    """Gives TensorFlow this trainer's share of the cores; returns in how many micro-batches a step
    of `batch_size` rows is to run. Call before the first TensorFlow operation.

    The local target puts all trainers of a job on one machine: with TensorFlow's default (a pool as
    large as the machine in each of them) they fight for cores in every matrix product; two deepfm
    trainers on two cores ran 15 % faster with one thread each.
    """
    share = max(1, len(os.sched_getaffinity(0)) // trainers)
    micro_batches = max(1, min(share, batch_size // _WORTH_A_CORE))
    tf.config.threading.set_intra_op_parallelism_threads(max(1, share // micro_batches))
    tf.config.threading.set_inter_op_parallelism_threads(share)
    log.info("%d cores for TensorFlow, %d micro-batches a step", share, micro_batches)
    return micro_batches


def build_network(build: Callable[[], Any], seed: int) -> keras.Model:
    """The model's network with the same initial weights in every process.

    Raises InvalidInput for a network with weights that training by gradient does not move.
    """
    keras.utils.set_random_seed(seed % 2**32)  # for initialisers of users' models that name no seed
    network = build()
    if network.non_trainable_weights:
        names = ", ".join(w.path for w in network.non_trainable_weights)
        raise InvalidInput(
            f"model has weights that are not trained, shared or checkpointed: {names}"
        )
    return network


@dataclass(frozen=True)
class _MicroBatch:
    """Tensors of a piece of the buffers."""

    first: int  # row
    inputs: list[Any]  # of the network
    labels: Any


class TrainStep:
    """Runs `network` on batches of up to `batch_size` rows, padded so that nothing is compiled
    twice.

    A batch is cut into micro-batches of equal size that run at the same time, each on a core of its
    own: cores that share every single product of matrices wait for each other after each of them.
    The gradient is the sum of theirs, in their order, so it has the same bits each time.

    Not thread-safe: buffers are reused.
    """

    def __init__(
        self,
        network: keras.Model,
        *,
        batch_size: int,
        dense: int,
        width: int,
        joined: bool = False,
        xla: Literal["auto", "on", "off"] = "off",
        micro_batches: int = 1,
    ) -> None:
        """`dense` (D) and `width` (W) are the widths of the network's two inputs; if they are
        `joined`, it has one, and the dense features are the first D of its W columns.

        `xla`: whether XLA compiles `run`; auto measures both and takes the faster. Raises
        InvalidInput when it is on and the network has an operation that XLA doesn't know, and for a
        network with other inputs.
        """
        _check_inputs(network, [width] if joined else [dense, width])
        self._network, self.batch_size = network, batch_size
        self._size = _round_up(-(-batch_size // micro_batches), _ROWS_ALIGNED)  # of a micro-batch
        self._variables = network.trainable_variables
        self._sizes = [math.prod(v.shape) for v in self._variables]
        pieces = [np.asarray(v.value, np.float32).ravel() for v in self._variables]
        # Taken now, because the variables are scratch space of the compiled functions later.
        self._initial: Floats = np.concatenate([np.zeros(0, np.float32), *pieces])
        # Buffers and the tensors that lie in them; no call is under way while one is written.
        size, total = self._size, self._size * micro_batches
        self._rows = _aligned(total, width)
        self._dense = self._rows[:, :dense] if joined else _aligned(total, dense)
        self._labels = _aligned(total)
        self._flat = _aligned(self.parameters)
        self._flat_tensor = _tensor(self._flat)
        inputs = [self._rows] if joined else [self._dense, self._rows]
        self._micro_batches = [
            _MicroBatch(
                first,
                [_tensor(each[first : first + size]) for each in inputs],
                _tensor(self._labels[first : first + size]),
            )
            for first in range(0, total, size)
        ]
        self._others = futures.ThreadPoolExecutor(max(1, micro_batches - 1), "micro-batch")
        self.traces = 0  # of `run`, for each way that was tried, and of `predict`: one each
        specs = [tf.TensorSpec((size, each.shape[1]), tf.float32) for each in inputs]
        count, labels = tf.TensorSpec((), tf.int32), tf.TensorSpec((size,), tf.float32)
        flat = tf.TensorSpec((self.parameters,), tf.float32)
        # AutoGraph would read our source again at the first trace, which for `predict` is hours
        # after the start; an upgrade of the package meanwhile must not change what runs.
        self._graph, self._compiled = (
            _Direct(
                tf.function(
                    self._forward_backward,
                    input_signature=[specs, labels, count, count, flat],
                    autograph=False,
                    jit_compile=jit,
                )
            )
            for jit in (False, True)
        )
        self.xla = self._chosen(xla)  # whether XLA compiles `run`
        self._train = self._compiled if self.xla else self._graph
        self._predict = _Direct(
            tf.function(self._forward, input_signature=[specs, flat], autograph=False)
        )

    @property
    def parameters(self) -> int:
        """Length of the flat vector of dense parameters."""
        return sum(self._sizes)

    def initial(self) -> Floats:
        """The network's initial parameters, flat, in the order of its trainable variables."""
        values: Floats = self._initial.copy()
        return values

    def rows(self, samples: int) -> Floats:
        """The buffer (samples, width) to gather a batch's rows into before `run` or `predict`; what
        was there is stale.
        """
        return self._rows[:samples]

    def run(self, dense: Floats, labels: Floats, parameters: Floats, *, step: int) -> StepResult:
        """Loss and gradients for n = len(labels) samples, 1 <= n <= batch_size, whose rows are in
        `rows(n)`.

        dense is (n, D), parameters flat. Raises Diverged that names the step.
        """
        n = len(labels)
        self._fill(n, dense)
        self._labels[:n] = labels
        losses, probabilities, row_grads, dense_grads, checksums = zip(
            *self._call(self._train, n, parameters), strict=True
        )
        loss, checksum = float(sum(losses)), float(sum(checksums))
        if not math.isfinite(loss) or not math.isfinite(checksum):
            what = f"loss is {loss}" if not math.isfinite(loss) else "a gradient is not finite"
            raise Diverged(
                f"step {step}: {what}; lower the learning rates, or clip or log the dense features"
            )
        return StepResult(
            loss,
            _joined(probabilities)[:n],
            (*row_grads[:-1], row_grads[-1][: n - (len(row_grads) - 1) * self._size]),
            functools.reduce(np.add, dense_grads),
        )

    def predict(self, dense: Floats, parameters: Floats) -> Floats:
        """Probabilities (n,) for n = len(dense) samples whose rows are in `rows(n)`."""
        n = len(dense)
        self._fill(n, dense)
        self._flat[:] = parameters
        outputs = self._each(n, lambda part: self._predict(*part.inputs, self._flat_tensor))
        return _joined([probabilities for (probabilities,) in outputs])[:n]

    def _call(self, train: _Direct, samples: int, parameters: Floats) -> list[list[Any]]:
        """What `train` gives for each micro-batch."""
        self._flat[:] = parameters
        total = tf.constant(samples, tf.int32)

        def run(part: _MicroBatch) -> Sequence[Any]:
            count = tf.constant(min(samples - part.first, self._size), tf.int32)
            return train(*part.inputs, part.labels, count, total, self._flat_tensor)

        return self._each(samples, run)

    def _each(self, samples: int, run: Callable[[_MicroBatch], Sequence[Any]]) -> list[list[Any]]:
        """Outputs as arrays for each micro-batch that has samples; the first runs on this
        thread.
        """

        def outputs(part: _MicroBatch) -> list[Any]:
            # Waits for each output, and does not copy it as t.numpy() would.
            return [np.asarray(tensor) for tensor in run(part)]

        first, *others = (part for part in self._micro_batches if part.first < samples)
        waiting = [self._others.submit(outputs, part) for part in others]
        try:
            own = outputs(first)
        finally:
            futures.wait(waiting)  # whatever came of it: they read the buffers
        return [own, *(each.result() for each in waiting)]

    def _chosen(self, xla: Literal["auto", "on", "off"]) -> bool:
        if xla == "off":
            return False
        try:
            if xla == "on":
                self._try(self._compiled)
                return True
            return second_is_faster(
                lambda: self._try(self._graph), lambda: self._try(self._compiled)
            )
        except tf.errors.OpError as error:
            if xla == "on":
                reason = f"XLA can't compile this model: {error.message}"
                raise InvalidInput(f"training.xla is on, but {reason}") from error
            log.info("XLA can't compile this model: %s", error.message)
            return False

    def _try(self, train: _Direct) -> None:
        """One whole step, its result thrown away."""
        self._rows.fill(0.01)
        self._call(train, self.batch_size, self._initial)

    def _fill(self, n: int, dense: Floats) -> None:
        self._dense[:n] = dense
        # Padding must hold numbers: a stale inf times the weight 0 would still be NaN.
        self._dense[n:] = 0.0
        self._rows[n:] = 0.0
        self._labels[n:] = 0.0

    def _forward_backward(
        self, inputs: list[Any], labels: Any, count: Any, total: Any, flat: Any
    ) -> Any:
        """Of a micro-batch with `count` of the batch's `total` samples."""
        self.traces += 1
        self._assign(flat)
        rows = inputs[-1]
        weights = tf.cast(tf.range(self._size) < count, tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(rows)
            logits = self._logits(inputs, training=True)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_sum(losses * weights) / tf.cast(total, tf.float32)
        row_grads, grads = tape.gradient(
            loss,
            (rows, [v.value for v in self._variables]),
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        dense_grads = (
            tf.concat([tf.reshape(g, (-1,)) for g in grads], 0) if grads else tf.zeros_like(flat)
        )
        checksum = tf.reduce_sum(row_grads) + tf.reduce_sum(
            dense_grads
        )  # finite only if every one is
        return loss, tf.sigmoid(logits), row_grads, dense_grads, checksum

    def _forward(self, inputs: list[Any], flat: Any) -> Any:
        self.traces += 1
        self._assign(flat)
        return tf.sigmoid(self._logits(inputs, training=False))

    def _logits(self, inputs: list[Any], *, training: bool) -> Any:
        network_inputs = inputs[0] if len(inputs) == 1 else inputs
        logits = self._network(network_inputs, training=training)
        return tf.reshape(logits, (self._size,))

    def _assign(self, flat: Any) -> None:
        if self._variables:
            for variable, piece in zip(self._variables, tf.split(flat, self._sizes), strict=True):
                variable.assign(tf.reshape(piece, variable.shape))


class _Direct:
    """A tf.function of one signature, called with tensors that are known to fit it.

    What tf.function does before each call, to find out whether it must trace anew, is a millisecond
    of Python, in which this process does nothing else.
    """

    def __init__(self, function: Any) -> None:
        """Traced at the first call."""
        self._function = function
        self._tracing = threading.Lock()
        self._concrete: Any = None
        self._captured: list[Any] = []  # the network's variables: arguments too

    def __call__(self, *tensors: Any) -> Sequence[Any]:
        """The outputs, flat. The tensors are the function's arguments, flat."""
        with self._tracing:
            if self._concrete is None:
                self._concrete = self._function.get_concrete_function()
                self._captured = self._concrete.captured_inputs
        outputs: Sequence[Any] = self._concrete.inference_fn.call_flat(*tensors, *self._captured)
        return outputs


def _check_inputs(network: keras.Model, expected: list[int]) -> None:
    inputs = getattr(network, "inputs", None)  # a user's own class of models may not know
    widths = [each.shape[-1] for each in inputs or ()]
    if widths and widths != expected:
        raise InvalidInput(
            f"model's network has inputs of {widths} floats, expected {expected}; see models.Model"
        )


def _aligned(*shape: int) -> Floats:
    """Zeros where a tensor may lie."""
    size = math.prod(shape) * np.dtype(np.float32).itemsize
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    array: Floats = memory[start : start + size].view(np.float32).reshape(shape)
    return array


def _tensor(array: Floats) -> Any:
    """A tensor in the same memory: what is written into the array, the next call reads without a
    copy.
    """
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def _joined(pieces: Sequence[Floats]) -> Floats:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
