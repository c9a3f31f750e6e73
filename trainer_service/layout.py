"""Where everything lies: feature -> table -> columns of the gathered matrix, built from the JobSpec
and its model.

Column order is the order of `features.sparse`, as is the order of the bags in a Batch; table ids
follow the first feature that reads each table. Knows neither TensorFlow nor servers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

from ps_service.client.plan import KeyPlanner
from ps_service.sharding import ShardMap
from ps_service.tables import RowPolicy, TableSpec, table_spec
from services.api.spec import JobSpec
from services.kit import plugins
from services.kit.errors import InvalidInput
from trainer_service.models import Model, ModelContext, SparseInput

_MAX_WIDTH = 4_096  # floats per row, the native core's bound


@dataclass(frozen=True)
class Layout:
    """F sparse features over T tables; `width` columns in all, among them those of the dense
    features, first, if the network takes them joined.
    """

    dense: int  # dense features
    tables: tuple[TableSpec, ...]  # (T,)
    feature_tables: tuple[int, ...]  # (F,) table id
    columns: tuple[int, ...]  # (F,) first column
    combiners: tuple[str, ...]  # (F,)
    width: int
    joined: bool  # see `models.Model`

    def planner(self, shard_map: ShardMap, threads: int = 1) -> KeyPlanner:
        """The planner of batches in this layout; `threads` as in KeyPlanner."""
        return KeyPlanner(
            self.tables,
            self.feature_tables,
            self.columns,
            self.combiners,
            self.width,
            shard_map,
            threads,
        )


def load_model(spec: JobSpec) -> Model:
    """The job's model. Raises InvalidInput for an unknown name or one that breaks the contract of
    `models`.
    """
    features = spec.features
    if not features.sparse:
        raise InvalidInput(
            "features.sparse is empty; a job trains embeddings of at least one sparse feature"
        )
    context = ModelContext(
        dense=len(features.dense),
        sparse=tuple(SparseInput(name, f.dim) for name, f in features.sparse.items()),
        hidden=spec.model.hidden,
        seed=spec.training.seed,
    )
    create = cast(
        Callable[[ModelContext], object], plugins.load("trainer_service.models", spec.model.name)
    )
    model: object = create(context)
    where = f"model {spec.model.name!r}"
    if not isinstance(model, Model):
        raise InvalidInput(f"{where} gave a {type(model).__name__}, expected a models.Model")
    if len(model.widths) != len(context.sparse):
        count = len(context.sparse)
        raise InvalidInput(f"{where} gave {len(model.widths)} widths for {count} sparse features")
    for feature, width in zip(context.sparse, model.widths, strict=True):
        if not 1 <= width <= _MAX_WIDTH:
            wants = f"feature {feature.name!r} wants rows of {width} floats"
            raise InvalidInput(f"{where}: {wants}, must be in 1..{_MAX_WIDTH}")
    return model


def build_layout(spec: JobSpec, model: Model) -> Layout:
    """The layout of `model` for the job.

    Raises InvalidInput for two features that share a table but want rows of different widths, and
    for unknown optimizers or initializers.
    """
    sparse = spec.features.sparse
    table_ids = {name: i for i, name in enumerate(spec.features.tables())}
    feature_tables = tuple(table_ids[f.table or name] for name, f in sparse.items())
    readers: dict[str, tuple[str, int]] = {}  # table -> (first feature, its width)
    for (name, feature), width in zip(sparse.items(), model.widths, strict=True):
        first, first_width = readers.setdefault(feature.table or name, (name, width))
        if width != first_width:
            raise InvalidInput(
                f"features {first!r} and {name!r} share table {feature.table!r}, but the model "
                f"wants rows of {first_width} and {width} floats"
            )
    tables = tuple(
        table_spec(
            table,
            readers[table][1],
            f.optimizer or spec.optimizers.sparse,
            f.initializer,
            f.weights,
            rows=RowPolicy.of(f.admission, f.eviction),
        )
        for table, f in spec.features.tables().items()
    )
    dense = len(spec.features.dense)
    columns = (*accumulate(model.widths, initial=dense if model.joined else 0),)
    return Layout(
        dense=dense,
        tables=tables,
        feature_tables=feature_tables,
        columns=columns[:-1],
        combiners=tuple(f.combiner for f in sparse.values()),
        width=columns[-1],
        joined=model.joined,
    )
