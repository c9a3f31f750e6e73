"""Logistic regression: one weight per key and per dense feature, and a bias."""

from __future__ import annotations

from keras import ops

from trainer_service.models import Model, ModelContext, _layers


def create(context: ModelContext) -> Model:
    """Rows of width 1; the context's `hidden` and the features' dims have no use here."""
    widths = (1,) * len(context.sparse)

    def build() -> object:
        dense, embeddings = _layers.inputs(context.dense, widths)
        weighted = _layers.linear(dense, context.seeds(), "first_order")
        return _layers.network(
            [dense, embeddings], [weighted, ops.sum(embeddings, axis=1, keepdims=True)]
        )

    return Model(widths, build)
