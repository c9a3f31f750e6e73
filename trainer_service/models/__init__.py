"""What a model is. To add one, write `trainer_service/models/<name>.py` with `create(context) ->
Model`; the JobSpec's `model: {name: <name>}` finds it, and `module:function` finds a user's own in
the same way.

A network sees fixed-shape float tensors only: it never meets a key, a table or a server. This
module must not import TensorFlow, because the gateway lists the known names through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class SparseInput:
    """One sparse feature as the job declares it."""

    name: str
    dim: int  # floats of its embedding


@dataclass(frozen=True)
class ModelContext:
    """What a model may depend on."""

    dense: int  # number of dense features
    sparse: tuple[SparseInput, ...]  # at least one, in the order of their columns
    hidden: tuple[int, ...]  # units of the hidden layers
    seed: int  # the job's seed

    def seeds(self) -> Iterator[int]:
        """31-bit seeds for initialisers, the same sequence in every process of the job."""
        stream = np.random.SeedSequence(self.seed)
        while True:
            (child,) = stream.spawn(1)
            yield int(child.generate_state(1)[0] >> 1)


@dataclass(frozen=True)
class Model:
    """The rows a model wants from the parameter servers, and its network.

    `widths[i]` is how many floats each row of sparse feature i has; wide_deep and deepfm use
    dim + 1, the first column being the feature's first-order weight. `build()` makes a Keras model
    of two inputs, dense (B, D) float32 and embeddings (B, sum(widths)) float32 with the features
    side by side, to logits (B,). Its trainable weights must not depend on anything but the context.
    Weights that are not trained (moving averages) are refused: they would be neither shared between
    trainers nor checkpointed. The logit of a sample must depend on that sample alone: a step may
    run pieces of its batch side by side, and fills the last one up with zeros.

    `joined`: the network has one input (B, D + sum(widths)) instead, the dense features first. For
    networks that would begin by putting the two side by side: rows are gathered into that matrix
    anyway, so every step saves a copy of it and one of its gradient. And if such a network is a
    functional Keras model that begins with a plain float32 Dense layer, which alone sees the input,
    a step need not make that matrix where samples share many keys: see `first_layer`.
    """

    widths: tuple[int, ...]
    build: Callable[[], Any]
    joined: bool = False
