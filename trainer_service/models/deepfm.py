"""DeepFM (Guo et al. 2017, arXiv 1703.04247): first order + factorisation machine + MLP over the
same embeddings.
"""

from __future__ import annotations

from keras import layers, ops

from services.kit.errors import InvalidInput
from trainer_service.models import Model, ModelContext, _layers


def create(context: ModelContext) -> Model:
    """Rows of width dim + 1, the first column being the first-order weight of the key.

    Raises InvalidInput when features differ in dim: their vectors are multiplied with each other.
    """
    for feature in context.sparse:
        if feature.dim != context.sparse[0].dim:
            raise InvalidInput(
                f"model deepfm needs equal dims: feature {context.sparse[0].name!r} has dim "
                f"{context.sparse[0].dim}, {feature.name!r} has {feature.dim}"
            )
    widths = tuple(s.dim + 1 for s in context.sparse)

    def build() -> object:
        seeds = context.seeds()
        dense, embeddings = _layers.inputs(context.dense, widths)
        first, vectors = _layers.split_first_order(embeddings, widths)
        linear = _layers.linear(dense, seeds, "first_order", bias=False)
        pairs = _layers.second_order(ops.reshape(vectors, (-1, len(widths), widths[0] - 1)))
        deep = _layers.mlp(layers.Concatenate()([dense, vectors]), context.hidden, seeds)
        return _layers.network([dense, embeddings], [linear, first, pairs, deep])

    return Model(widths, build)
