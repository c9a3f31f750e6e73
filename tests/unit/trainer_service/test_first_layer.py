"""Which networks are cut behind their first layer, and that the two parts are the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from trainer_service.first_layer import split_first_layer
from trainer_service.models import ModelContext, SparseInput, deepfm, dnn, lr, wide_deep

WIDTH, UNITS = 7, 5


def network(*stack: Any) -> keras.Model:
    """The layers, one after another, and a logit."""
    x = inputs = keras.Input((WIDTH,))
    for layer in stack:
        x = layer(x)
    return keras.Model(inputs, ops.reshape(layers.Dense(1)(x), (-1,)))


def sequential(*stack: Any) -> keras.Model:
    return keras.Sequential([keras.Input((WIDTH,)), *stack, layers.Dense(1)])


@pytest.mark.parametrize(
    ("whole", "stack", "bias", "relu"),
    [
        (network, lambda: [layers.Dense(UNITS, "relu"), layers.Dense(4, "relu")], True, True),
        (network, lambda: [layers.Dense(UNITS, "gelu"), layers.LayerNormalization()], True, False),
        (network, lambda: [layers.Dense(UNITS), layers.ReLU()], True, False),
        (network, lambda: [layers.Dense(UNITS, "softmax"), layers.Dropout(0.1)], True, False),
        (network, lambda: [layers.Dense(UNITS, "tanh", use_bias=False)], False, False),
        (sequential, lambda: [layers.Dense(UNITS, "relu"), layers.Dense(4)], True, True),
    ],
    ids=["relu", "gelu", "linear", "softmax", "no bias", "sequential"],
)
def test_the_layer_and_the_rest_are_the_network(
    whole: Callable[..., keras.Model], stack: Callable[[], list[Any]], bias: bool, relu: bool
) -> None:
    keras.utils.set_random_seed(3)
    model = whole(*stack())
    for weight in model.trainable_variables:  # biases too
        weight.assign(np.random.default_rng(4).normal(size=weight.shape))
    first = split_first_layer(model)
    assert first is not None
    assert (first.units, first.bias, first.relu) == (UNITS, bias, relu)
    own, others = model.trainable_variables[: 1 + bias], model.trainable_variables[1 + bias :]
    assert all(a is b for a, b in zip(first.rest.trainable_variables, others, strict=True))
    x = np.random.default_rng(5).normal(size=(6, WIDTH)).astype(np.float32)
    product = x @ np.asarray(own[0].value) + (np.asarray(own[1].value) if bias else 0.0)
    logits = first.rest(first.activation(ops.convert_to_tensor(product)))
    np.testing.assert_allclose(logits, model(x), rtol=1e-5, atol=1e-6)


class OwnDense(layers.Dense):  # type: ignore[misc]
    """Is not what Dense is."""

    def call(self, inputs: Any, training: Any = None) -> Any:
        return ops.square(super().call(inputs, training))


class OwnModel(keras.Model):  # type: ignore[misc]
    """Has no layers that anybody could look at."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = layers.Dense(UNITS), layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return ops.reshape(self.second(self.first(inputs)), (-1,))


def built(model: keras.Model) -> keras.Model:
    model(np.zeros((1, WIDTH), np.float32))
    return model


def skipping() -> keras.Model:
    """Reads its input again behind the layer."""
    inputs = keras.Input((WIDTH,))
    x = layers.Concatenate()([layers.Dense(UNITS)(inputs), inputs])
    return keras.Model(inputs, ops.reshape(layers.Dense(1)(x), (-1,)))


def twice_the_same() -> keras.Model:
    """Its first layer is its second, too."""
    inputs, layer = keras.Input((WIDTH,)), layers.Dense(WIDTH, "relu")
    return keras.Model(inputs, ops.reshape(layers.Dense(1)(layer(layer(inputs))), (-1,)))


def two_towers() -> keras.Model:
    inputs = keras.Input((WIDTH,))
    towers = [layers.Dense(UNITS)(inputs), layers.Dense(UNITS)(inputs)]
    return keras.Model(inputs, ops.reshape(layers.Dense(1)(layers.Add()(towers)), (-1,)))


def two_inputs() -> keras.Model:
    inputs = [keras.Input((3,)), keras.Input((WIDTH,))]
    x = layers.Dense(UNITS)(layers.Concatenate()(inputs))
    return keras.Model(inputs, ops.reshape(layers.Dense(1)(x), (-1,)))


def half_precision() -> keras.Model:
    return network(layers.Dense(UNITS, dtype="mixed_float16"))


def frozen() -> keras.Model:
    model = network(layers.Dense(UNITS), layers.Dense(4))
    model.layers[1].trainable = False
    return model


def inside_another() -> keras.Model:
    inputs = keras.Input((WIDTH,))
    inner = keras.Model(inputs, layers.Dense(UNITS)(inputs))
    return network(inner)


@pytest.mark.parametrize(
    "other",
    [
        skipping,
        twice_the_same,
        two_towers,
        two_inputs,
        half_precision,
        frozen,
        inside_another,
        lambda: network(OwnDense(UNITS)),
        lambda: network(layers.LayerNormalization(), layers.Dense(UNITS)),
        lambda: network(layers.Dropout(0.1), layers.Dense(UNITS)),
        lambda: built(OwnModel()),
        OwnModel,
        object,
    ],
    ids=[
        "the input again",
        "a shared layer",
        "two towers",
        "two inputs",
        "half precision",
        "not trained",
        "a network inside",
        "a subclass of Dense",
        "a normalization before",
        "a dropout before",
        "a user's class",
        "a user's class, not built",
        "no network",
    ],
)
def test_another_network_is_left_whole(other: Callable[[], Any]) -> None:
    assert split_first_layer(other()) is None


def test_of_the_built_in_models_it_is_dnn() -> None:
    context = ModelContext(3, (SparseInput("a", 4), SparseInput("b", 4)), (6, 5), seed=1)
    for module in (lr, wide_deep, deepfm):
        assert split_first_layer(module.create(context).build()) is None
    layer = split_first_layer(dnn.create(context).build())
    assert layer is not None
    assert (layer.units, layer.bias, layer.relu) == (6, True, True)
