"""Functions that TensorFlow compiles once, for tensors of fixed shape."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class Compiled:
    """A function of tensors of one signature, called with tensors that are known to fit it.

    What tf.function does before each call, to find out whether it must trace anew, is a millisecond
    of Python, in which this process does nothing else.
    """

    def __init__(
        self, function: Callable[..., Any], signature: Sequence[Any], *, xla: bool = False
    ) -> None:
        """Traced at the first call."""
        # AutoGraph would read our source again at the first trace, which for some functions is
        # hours after the start; an upgrade of the package meanwhile must not change what runs.
        self._function = tf.function(
            function, input_signature=list(signature), autograph=False, jit_compile=xla
        )
        self._tracing = threading.Lock()
        self._concrete: Any = None
        self._captured: list[Any] = []  # the network's variables: arguments too

    def trace(self) -> None:
        """Traces now what the first call would."""
        with self._tracing:
            if self._concrete is None:
                self._concrete = self._function.get_concrete_function()
                self._captured = self._concrete.captured_inputs

    def __call__(self, *tensors: Any) -> list[Any]:
        """The outputs, flat, as arrays that look into TensorFlow's memory. The tensors are the
        function's arguments, flat.
        """
        self.trace()
        outputs = self._concrete.inference_fn.call_flat(*tensors, *self._captured)
        # Waits for each output, and does not copy it as t.numpy() would.
        return [np.asarray(each) for each in outputs]


def assign(variables: Sequence[Any], sizes: Sequence[int], flat: Any) -> None:
    """Puts pieces of a flat tensor, of these sizes, into variables."""
    if variables:
        for variable, piece in zip(variables, tf.split(flat, list(sizes)), strict=True):
            variable.assign(tf.reshape(piece, variable.shape))


def flattened(tensors: Sequence[Any]) -> Any:
    """All of them as one flat tensor."""
    return tf.concat([tf.reshape(each, (-1,)) for each in tensors], 0) if tensors else tf.zeros(0)


def mean_loss(logits: Any, labels: Any, count: Any, total: Any) -> Any:
    """What the first `count` of some samples give to the mean cross-entropy of `total` ones."""
    weights = tf.cast(tf.range(tf.size(logits)) < count, tf.float32)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_sum(losses * weights) / tf.cast(total, tf.float32)
