"""The network of the benchmark workload (W1) as a user's own model: dense features and embeddings
side by side, then an MLP to one logit.
"""

from __future__ import annotations

import keras

from trainer_service.models import Model, ModelContext


def create(context: ModelContext) -> Model:
    """Rows as wide as the features' dims, joined with the dense features."""
    widths = tuple(feature.dim for feature in context.sparse)
    inputs = context.dense + sum(widths)
    return Model(widths, lambda: build_joined(inputs, context.hidden), joined=True)


def build(dense: int, width: int, hidden: tuple[int, ...]) -> keras.Model:
    """(B, dense) and (B, width) to logits (B,)."""
    inputs = keras.Input((dense,)), keras.Input((width,))
    return keras.Model(list(inputs), _logits(keras.layers.Concatenate()(list(inputs)), hidden))


def build_joined(width: int, hidden: tuple[int, ...]) -> keras.Model:
    """(B, width), dense features and embeddings side by side already, to logits (B,)."""
    inputs = keras.Input((width,))
    return keras.Model(inputs, _logits(inputs, hidden))


def _logits(x: keras.KerasTensor, hidden: tuple[int, ...]) -> keras.KerasTensor:
    for seed, units in enumerate(hidden):
        x = keras.layers.Dense(units, "relu", kernel_initializer=_glorot(seed))(x)
    logit = keras.layers.Dense(1, kernel_initializer=_glorot(len(hidden)))(x)
    return keras.ops.reshape(logit, (-1,))


def _glorot(seed: int) -> keras.Initializer:
    return keras.initializers.GlorotUniform(seed=seed)
