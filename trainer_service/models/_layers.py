"""Parts that several networks share, written with keras.ops. Shapes: B samples, F sparse features,
K embedding floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import keras
from keras import ops


def inputs(dense: int, widths: Sequence[int]) -> tuple[Any, Any]:
    """The two inputs of a network: dense (B, D) and embeddings (B, sum(widths))."""
    return keras.Input((dense,), name="dense"), keras.Input((sum(widths),), name="embeddings")


def joined_input(dense: int, widths: Sequence[int]) -> Any:
    """The one input of a network that takes them side by side: (B, D + sum(widths))."""
    return keras.Input((dense + sum(widths),), name="joined")


def network(inputs: Any, terms: Sequence[Any]) -> Any:
    """The Keras model from an input, or a list of them, to a logit (B,): the sum of `terms`, each
    (B, 1).
    """
    logit = terms[0] if len(terms) == 1 else keras.layers.Add(name="logit")(list(terms))
    return keras.Model(inputs, ops.reshape(logit, (-1,)))


def linear(x: Any, seeds: Iterator[int], name: str, *, bias: bool = True) -> Any:
    """(B, n) -> (B, 1)."""
    kernel = keras.initializers.GlorotUniform(seed=next(seeds))
    return keras.layers.Dense(1, use_bias=bias, kernel_initializer=kernel, name=name)(x)


def mlp(x: Any, hidden: Sequence[int], seeds: Iterator[int]) -> Any:
    """ReLU layers of `hidden` units and a linear output: (B, n) -> (B, 1)."""
    for depth, units in enumerate(hidden):
        kernel = keras.initializers.GlorotUniform(seed=next(seeds))
        x = keras.layers.Dense(
            units, activation="relu", kernel_initializer=kernel, name=f"deep_{depth}"
        )(x)
    return linear(x, seeds, "deep_out")


def split_first_order(embeddings: Any, widths: Sequence[int]) -> tuple[Any, Any]:
    """Parts F >= 1 rows of 1 + dim floats: first-order weights summed to (B, 1), and embeddings
    side by side (B, K).
    """
    if len(set(widths)) == 1:  # one reshape instead of 2F slices
        rows = ops.reshape(embeddings, (-1, len(widths), widths[0]))
        first = ops.sum(rows[:, :, 0], axis=1, keepdims=True)
        return first, ops.reshape(rows[:, :, 1:], (-1, len(widths) * (widths[0] - 1)))
    spans = list(pairwise(accumulate(widths, initial=0)))
    first = ops.concatenate([embeddings[:, a : a + 1] for a, _ in spans], axis=1)
    rest = ops.concatenate([embeddings[:, a + 1 : b] for a, b in spans], axis=1)
    return ops.sum(first, axis=1, keepdims=True), rest


def second_order(vectors: Any) -> Any:
    """Factorisation machine (Rendle 2010): all pairwise dot products of (B, F, dim), summed, in
    linear time: ½·Σ_k((Σ_f v_fk)² - Σ_f v_fk²), as (B, 1).
    """
    square_of_sum = ops.square(ops.sum(vectors, axis=1))
    sum_of_squares = ops.sum(ops.square(vectors), axis=1)
    return 0.5 * ops.sum(square_of_sum - sum_of_squares, axis=1, keepdims=True)
