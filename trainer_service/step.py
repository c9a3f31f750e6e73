"""The compiled training step: dense tensors of fixed shape in, loss and gradients out.

Rows arrive gathered and leave as gradients of the gathered matrix; the network's own parameters
arrive and leave as one flat float32 vector. Which keys, tables and servers stand behind them is not
known here, and no optimizer runs here: the parameter servers apply the gradients.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from services.kit.errors import EmbermeshError, InvalidInput
from trainer_service.faster import second_is_faster
from trainer_service.micro_batches import Floats, MicroBatch, MicroBatches, aligned, tensor

log = logging.getLogger(__name__)


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


class TrainStep:
    """Runs `network` on batches of up to `batch_size` rows, in micro-batches padded to equal size
    so that nothing is compiled twice.

    The dense gradient is the sum of theirs in their order, so it has the same bits each time.

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
        `micro_batches` as configure_threads says.

        `xla`: whether XLA compiles `run`; auto measures both and takes the faster. Raises
        InvalidInput when it is on and the network has an operation that XLA doesn't know, and for a
        network with other inputs.
        """
        _check_inputs(network, [width] if joined else [dense, width])
        self._network, self.batch_size = network, batch_size
        self._variables = network.trainable_variables
        self._sizes = [math.prod(v.shape) for v in self._variables]
        pieces = [np.asarray(v.value, np.float32).ravel() for v in self._variables]
        # Taken now, because the variables are scratch space of the compiled functions later.
        self._initial: Floats = np.concatenate([np.zeros(0, np.float32), *pieces])
        self._input = MicroBatches(
            micro_batches, batch_size=batch_size, dense=dense, width=width, joined=joined
        )
        self._flat = aligned(self.parameters)
        self._flat_tensor = tensor(self._flat)
        self.traces = 0  # of `run`, for each way that was tried, and of `predict`: one each
        inputs, labels = self._input.specs, self._input.labels_spec
        count, flat = tf.TensorSpec((), tf.int32), tf.TensorSpec((self.parameters,), tf.float32)
        # AutoGraph would read our source again at the first trace, which for `predict` is hours
        # after the start; an upgrade of the package meanwhile must not change what runs.
        self._graph, self._compiled = (
            _Direct(
                tf.function(
                    self._forward_backward,
                    input_signature=[inputs, labels, count, count, flat],
                    autograph=False,
                    jit_compile=jit,
                )
            )
            for jit in (False, True)
        )
        self.xla = self._chosen(xla)  # whether XLA compiles `run`
        self._train = self._compiled if self.xla else self._graph
        self._predict = _Direct(
            tf.function(self._forward, input_signature=[inputs, flat], autograph=False)
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
        return self._input.rows[:samples]

    def run(self, dense: Floats, labels: Floats, parameters: Floats, *, step: int) -> StepResult:
        """Loss and gradients for n = len(labels) samples, 1 <= n <= batch_size, whose rows are in
        `rows(n)`.

        dense is (n, D), parameters flat. Raises Diverged that names the step.
        """
        n = len(labels)
        self._input.fill(dense, labels)
        outputs = self._call(self._train, n, parameters)
        losses, probabilities, row_grads, dense_grads, checksums = zip(*outputs, strict=True)
        loss, checksum = float(sum(losses)), float(sum(checksums))
        if not math.isfinite(loss) or not math.isfinite(checksum):
            what = f"loss is {loss}" if not math.isfinite(loss) else "a gradient is not finite"
            raise Diverged(
                f"step {step}: {what}; lower the learning rates, or clip or log the dense features"
            )
        *whole, last = row_grads
        return StepResult(
            loss,
            _joined(probabilities)[:n],
            (*whole, last[: n - len(whole) * self._input.size]),
            functools.reduce(np.add, dense_grads),
        )

    def predict(self, dense: Floats, parameters: Floats) -> Floats:
        """Probabilities (n,) for n = len(dense) samples, 1 <= n <= batch_size, whose rows are in
        `rows(n)`.
        """
        n = len(dense)
        self._input.fill(dense)
        self._flat[:] = parameters
        outputs = self._input.run(n, lambda piece: self._predict(*piece.inputs, self._flat_tensor))
        return _joined([probabilities for (probabilities,) in outputs])[:n]

    def _call(self, train: _Direct, samples: int, parameters: Floats) -> list[list[Any]]:
        """What `train` gives for each micro-batch of the samples."""
        self._flat[:] = parameters
        total = tf.constant(samples, tf.int32)

        def run(piece: MicroBatch) -> Sequence[Any]:
            count = tf.constant(min(samples - piece.first, self._input.size), tf.int32)
            return train(*piece.inputs, piece.labels, count, total, self._flat_tensor)

        return self._input.run(samples, run)

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
        self._input.rows.fill(0.01)
        self._call(train, self.batch_size, self._initial)

    def _forward_backward(
        self, inputs: list[Any], labels: Any, count: Any, total: Any, flat: Any
    ) -> Any:
        """Of a micro-batch with `count` of the batch's `total` samples."""
        self.traces += 1
        self._assign(flat)
        rows = inputs[-1]
        weights = tf.cast(tf.range(self._input.size) < count, tf.float32)
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
        return tf.reshape(logits, (self._input.size,))

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


def _joined(pieces: Sequence[Floats]) -> Floats:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
