"""Wide & Deep (Cheng et al. 2016, arXiv 1606.07792): a linear part beside an MLP over dense
features and embeddings.
"""

from __future__ import annotations

from keras import layers

from trainer_service.models import Model, ModelContext, _layers


def create(context: ModelContext) -> Model:
    """Rows of width dim + 1, the first column being the wide part's weight of the key."""
    widths = tuple(s.dim + 1 for s in context.sparse)

    def build() -> object:
        seeds = context.seeds()
        dense, embeddings = _layers.inputs(context.dense, widths)
        first, vectors = _layers.split_first_order(embeddings, widths)
        wide = _layers.linear(dense, seeds, "first_order", bias=False)
        deep = _layers.mlp(layers.Concatenate()([dense, vectors]), context.hidden, seeds)
        return _layers.network([dense, embeddings], [wide, first, deep])

    return Model(widths, build)
