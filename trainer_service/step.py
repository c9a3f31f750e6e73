"""The compiled training step: dense tensors of fixed shape in, loss and gradients out.

Rows are gathered by their batch's plan, and leave as gradients of the gathered matrix, or of
distinct rows where `projected_step` takes them as they are; the network's own parameters arrive and
leave as one flat float32 vector. Which tables and servers stand behind them is not known here, and
no optimizer runs here: the parameter servers apply the gradients.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from ps_service.client.plan import KeyPlan, Projection
from services.kit.errors import EmbermeshError, InvalidInput
from trainer_service.compiled import Compiled, assign, flattened, mean_loss
from trainer_service.faster import second_is_faster
from trainer_service.first_layer import split_first_layer
from trainer_service.micro_batches import Floats, MicroBatch, MicroBatches, aligned, tensor
from trainer_service.projected_step import ProjectedStep

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
    # (n, width), those of joined dense features among them, in pieces of a micro-batch; none if
    # there are projections
    row_grads: tuple[Floats, ...]
    dense_grads: Floats  # (parameters,)
    projections: tuple[Projection, ...] = ()  # keep the rows' gradients until the next step


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
        project: bool = False,
    ) -> None:
        """`dense` (D) and `width` (W) are the widths of the network's two inputs; if they are
        `joined`, it has one, and the dense features are the first D of its W columns.
        `micro_batches` as configure_threads says.

        `xla`: whether XLA compiles `run`; auto measures both and takes the faster. Raises
        InvalidInput when it is on and the network has an operation that XLA doesn't know, and for a
        network with other inputs. `project`: whether `take` may compute a dense first layer of
        joined inputs by distinct rows.
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
        self._graph, self._compiled = (
            Compiled(self._forward_backward, [inputs, labels, count, count, flat], xla=compiles)
            for compiles in (False, True)
        )
        self.xla = self._chosen(xla)  # whether XLA compiles `run`
        self._train = self._compiled if self.xla else self._graph
        self._predict = Compiled(self._forward, [inputs, flat])
        self._projected = self._projected_step(project and joined, width, micro_batches)

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

    def take(
        self,
        plan: KeyPlan,
        values: Floats,
        dense: Floats,
        labels: Floats,
        parameters: Floats,
        *,
        step: int,
    ) -> StepResult:
        """As `run`, for a batch whose rows are `values` of its plan, in the way that is less work
        for it.
        """
        n = len(labels)
        if self._projected is not None and self._projected.suits(plan):
            outputs = self._projected.run(plan, values, dense, labels, parameters)
            return _result(outputs, n, step)
        plan.gather(values, self.rows(n))
        return self.run(dense, labels, parameters, step=step)

    def run(self, dense: Floats, labels: Floats, parameters: Floats, *, step: int) -> StepResult:
        """Loss and gradients for n = len(labels) samples, 1 <= n <= batch_size, whose rows are in
        `rows(n)`.

        dense is (n, D), parameters flat. Raises Diverged that names the step.
        """
        self._input.fill(dense, labels)
        return _result(self._call(self._train, len(labels), parameters), len(labels), step)

    def predict(self, dense: Floats, parameters: Floats) -> Floats:
        """Probabilities (n,) for n = len(dense) samples, 1 <= n <= batch_size, whose rows are in
        `rows(n)`.
        """
        n = len(dense)
        self._input.fill(dense)
        self._flat[:] = parameters
        outputs = self._input.run(n, lambda piece: self._predict(*piece.inputs, self._flat_tensor))
        return _joined([probabilities for (probabilities,) in outputs])[:n]

    def _call(self, train: Compiled, samples: int, parameters: Floats) -> list[list[Any]]:
        """What `train` gives for each micro-batch of the samples."""
        self._flat[:] = parameters
        total = tf.constant(samples, tf.int32)

        def run(piece: MicroBatch) -> list[Any]:
            rows = min(samples - piece.first, self._input.size)
            count = tf.constant(rows, tf.int32)
            outputs = train(*piece.inputs, piece.labels, count, total, self._flat_tensor)
            loss, probabilities, row_grads, dense_grads, checksum = outputs
            return [loss, probabilities, row_grads[:rows], dense_grads, checksum]

        return self._input.run(samples, run)

    def _projected_step(
        self, project: bool, width: int, micro_batches: int
    ) -> ProjectedStep | None:
        layer = split_first_layer(self._network) if project else None
        if layer is None:
            return None
        return ProjectedStep(
            layer,
            batch_size=self.batch_size,
            width=width,
            xla=self.xla,
            micro_batches=micro_batches,
        )

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

    def _try(self, train: Compiled) -> None:
        """One whole step, its result thrown away."""
        self._input.rows.fill(0.01)
        self._call(train, self.batch_size, self._initial)

    def _forward_backward(
        self, inputs: list[Any], labels: Any, count: Any, total: Any, flat: Any
    ) -> Any:
        """Of a micro-batch with `count` of the batch's `total` samples."""
        self.traces += 1
        assign(self._variables, self._sizes, flat)
        rows = inputs[-1]
        with tf.GradientTape() as tape:
            tape.watch(rows)
            logits = self._logits(inputs, training=True)
            loss = mean_loss(logits, labels, count, total)
        row_grads, grads = tape.gradient(
            loss,
            (rows, [v.value for v in self._variables]),
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        dense_grads = flattened(grads)
        checksum = tf.reduce_sum(row_grads) + tf.reduce_sum(
            dense_grads
        )  # finite only if every one is
        return loss, tf.sigmoid(logits), row_grads, dense_grads, checksum

    def _forward(self, inputs: list[Any], flat: Any) -> Any:
        self.traces += 1
        assign(self._variables, self._sizes, flat)
        return tf.sigmoid(self._logits(inputs, training=False))

    def _logits(self, inputs: list[Any], *, training: bool) -> Any:
        network_inputs = inputs[0] if len(inputs) == 1 else inputs
        logits = self._network(network_inputs, training=training)
        return tf.reshape(logits, (self._input.size,))


def _check_inputs(network: keras.Model, expected: list[int]) -> None:
    inputs = getattr(network, "inputs", None)  # a user's own class of models may not know
    widths = [each.shape[-1] for each in inputs or ()]
    if widths and widths != expected:
        raise InvalidInput(
            f"model's network has inputs of {widths} floats, expected {expected}; see models.Model"
        )


def _result(outputs: Sequence[list[Any]], n: int, step: int) -> StepResult:
    """Of the n samples of a step, from what its micro-batches gave."""
    losses, probabilities, row_grads, dense_grads, checksums = zip(*outputs, strict=True)
    loss, checksum = float(sum(losses)), float(sum(checksums))
    if not math.isfinite(loss) or not math.isfinite(checksum):
        what = f"loss is {loss}" if not math.isfinite(loss) else "a gradient is not finite"
        raise Diverged(
            f"step {step}: {what}; lower the learning rates, or clip or log the dense features"
        )
    arrays = isinstance(row_grads[0], np.ndarray)
    return StepResult(
        loss,
        _joined(probabilities)[:n],
        row_grads if arrays else (),
        functools.reduce(np.add, dense_grads),
        () if arrays else row_grads,
    )


def _joined(pieces: Sequence[Floats]) -> Floats:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
