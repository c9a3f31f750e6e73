"""The step of a network whose first layer is computed once for each distinct row of a batch, not
once for each sample: the same loss and gradients as `TrainStep.run`, but for rounding.

The layer's product with the rows runs outside TensorFlow, on the core of its micro-batch, before
and after the rest of the network.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from ps_service.client.plan import KeyPlan, Projection
from trainer_service.compiled import Compiled, assign, flattened, mean_loss
from trainer_service.first_layer import FirstLayer
from trainer_service.micro_batches import Floats, MicroBatch, MicroBatches, aligned, tensor


class ProjectedStep:
    """Not thread-safe: buffers are reused."""

    def __init__(
        self,
        layer: FirstLayer,
        *,
        batch_size: int,
        width: int,
        xla: bool,
        micro_batches: int,
    ) -> None:
        """As TrainStep's, of a network whose one input is (B, width)."""
        self._layer, self._units = layer, layer.units
        self._input = MicroBatches(
            micro_batches, batch_size=batch_size, dense=0, width=layer.units, joined=True
        )
        self._projections = [Projection() for _ in range(micro_batches)]
        self._kernel = slice(0, width * layer.units)  # of the flat parameters
        self._bias = slice(self._kernel.stop, self._kernel.stop + layer.bias * layer.units)
        self._sizes = [math.prod(v.shape) for v in layer.rest.trainable_variables]
        self._rest = aligned(sum(self._sizes))  # the others
        self._rest_tensor = tensor(self._rest)
        self.traces = 0
        count, rest = tf.TensorSpec((), tf.int32), tf.TensorSpec(self._rest.shape, tf.float32)
        signature = [self._input.specs[0], self._input.labels_spec, count, count, rest]
        self._train = Compiled(self._forward_backward, signature, xla=xla)
        self._train.trace()  # now: which batch will need it first is not known

    def suits(self, plan: KeyPlan) -> bool:
        """Whether this is clearly less work for a batch than a step with its gathered rows."""
        return plan.worth_projecting(self._units)

    def run(
        self,
        plan: KeyPlan,
        values: Floats,
        dense: Floats,
        labels: Floats,
        parameters: Floats,
    ) -> list[list[Any]]:
        """For each micro-batch of the n samples: loss, probabilities (size,), the projection that
        keeps the gradients of its rows, the dense gradients, flat as `parameters`, and a number
        that is finite only if all gradients are.

        `values` of the plan's rows, dense (n, D).
        """
        n = len(labels)
        self._input.fill(np.empty((n, 0), np.float32), labels)
        self._rest[:] = parameters[self._bias.stop :]
        total = tf.constant(n, tf.int32)
        kernel, bias = self._own(parameters)

        def run(piece: MicroBatch) -> list[Any]:
            samples = slice(piece.first, min(n, piece.first + self._input.size))
            projection = self._projections[piece.first // self._input.size]
            projection.take(plan.native, values, dense[samples], piece.first)
            outputs = self._input.rows[samples]
            projection.forward(kernel, bias, self._layer.relu, outputs)
            count = tf.constant(len(outputs), tf.int32)
            loss, probabilities, grads, rest_grads = self._train(
                *piece.inputs, piece.labels, count, total, self._rest_tensor
            )
            dense_grads = np.empty_like(parameters)
            checksum = projection.backward(
                kernel,
                self._layer.relu,
                outputs,
                grads[: len(outputs)],
                *self._own(dense_grads),
            )
            dense_grads[self._bias.stop :] = rest_grads
            checksum += float(dense_grads.sum())
            return [loss, probabilities, projection, dense_grads, checksum]

        return self._input.run(n, run)

    def _own(self, flat: Floats) -> tuple[Floats, Floats | None]:
        """The layer's kernel (width, units) and bias (units,) in a flat vector of parameters or of
        their gradients.
        """
        bias = flat[self._bias] if self._layer.bias else None
        return flat[self._kernel].reshape(-1, self._units), bias

    def _forward_backward(
        self, outputs: Any, labels: Any, count: Any, total: Any, rest: Any
    ) -> Any:
        """Of a micro-batch with `count` of the batch's `total` samples, from the layer's outputs,
        to which its activation may have been applied.
        """
        self.traces += 1
        layer, variables = self._layer, self._layer.rest.trainable_variables
        assign(variables, self._sizes, rest)
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            hidden = outputs if layer.relu else layer.activation(outputs)
            logits = tf.reshape(layer.rest(hidden, training=True), (-1,))
            loss = mean_loss(logits, labels, count, total)
        grads, rest_grads = tape.gradient(
            loss,
            (outputs, [v.value for v in variables]),
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return loss, tf.sigmoid(logits), grads, flattened(rest_grads)
