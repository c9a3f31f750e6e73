"""An embedding MLP, as the ranking network of Covington, Adams and Sargin, *Deep Neural Networks
for YouTube Recommendations* (RecSys 2016, doi 10.1145/2959100.2959190, §4): dense features and
embeddings side by side, ReLU layers, one logit.
"""

from __future__ import annotations

from trainer_service.models import Model, ModelContext, _layers


def create(context: ModelContext) -> Model:
    """Rows of width dim: there are no first-order weights. Its inputs are joined."""
    widths = tuple(s.dim for s in context.sparse)

    def build() -> object:
        x = _layers.joined_input(context.dense, widths)
        return _layers.network(x, [_layers.mlp(x, context.hidden, context.seeds())])

    return Model(widths, build, joined=True)
