"""A network that begins with a dense layer, in two: that layer, and the rest.

What the layer's weights make of a row is the same in every sample that has the row's key, so it
need not be computed for each of them (`ps_service.client.plan.Projection`). RecD (arXiv 2211.05239)
shares work between samples in the same way.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import keras


@dataclass(frozen=True)
class FirstLayer:
    """activation(x·kernel + bias), of which kernel and bias are the network's first weights."""

    units: int  # columns of the kernel
    bias: bool  # whether there is one
    relu: bool  # whether the activation is that
    activation: Callable[[Any], Any]
    rest: keras.Model  # from (B, units) to the logits; its weights are the network's others


def split_first_layer(network: Any) -> FirstLayer | None:
    """The first layer of a network of one input, or None if that isn't a plain dense layer, or
    anything else in the network sees its input or its weights.
    """
    inputs = getattr(network, "inputs", None)  # a user's own class of models may not know
    if not isinstance(network, keras.Model) or inputs is None or len(inputs) != 1:
        return None
    layer: Any = next((each for each in network.layers if _reads(each, inputs[0])), None)
    if type(layer) is not keras.layers.Dense or layer.compute_dtype != "float32":
        return None
    try:
        rest = keras.Model(layer.output, network.outputs[0])
    except ValueError:  # the output can't be had from the layer's alone
        return None
    own = [layer.kernel, *([layer.bias] if layer.use_bias else [])]
    weights = [*own, *rest.trainable_variables]
    pairs = itertools.zip_longest(weights, network.trainable_variables)
    if any(one is not other for one, other in pairs):
        return None
    activation = cast(Callable[[Any], Any], layer.activation)
    relu = activation is keras.activations.relu
    return FirstLayer(layer.units, layer.use_bias, relu, activation, rest)


def _reads(layer: Any, tensor: Any) -> bool:
    """Whether a layer has the tensor as its one input, and only at one place of the network."""
    try:
        return not isinstance(layer, keras.layers.InputLayer) and layer.input is tensor
    except (AttributeError, ValueError):  # none yet, or at several places
        return False
