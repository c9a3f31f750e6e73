"""What a JobSpec's own schema can't check: names and parameters that other packages know."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from ps_service import tables
from services.api.features import SparseFeature
from services.api.spec import JobSpec
from services.kit import plugins
from services.kit.errors import InvalidInput

MODELS = "trainer_service.models"


def check(spec: JobSpec) -> None:
    """Raises InvalidInput with one line per problem, each naming its field."""
    problems = [*_secrets(spec), *_model(spec), *_optimizers(spec)]
    if problems:
        raise InvalidInput("\n".join(problems))


def _secrets(spec: JobSpec) -> list[str]:
    """A JobSpec is shown to every viewer and kept for good: credentials come from the processes'
    surroundings.
    """
    holdout = spec.data.holdout
    places = {
        "data.source": spec.data.source,
        "data.holdout.source": holdout.source if holdout else None,
        "checkpoint.to": spec.checkpoint.to if spec.checkpoint else None,
    }
    return [
        f"{field}: holds a user name or password; credentials don't belong in a JobSpec"
        for field, uri in places.items()
        if uri and "@" in urlsplit(uri).netloc
    ]


def _model(spec: JobSpec) -> list[str]:
    name = spec.model.name
    if ":" in name:
        module, _, function = name.partition(":")
        if all(part.isidentifier() for part in [*module.split("."), function]):
            return []
        return [f"model.name: {name!r} is not of the form module:function"]
    known = plugins.names(MODELS)
    if name in known:
        return []
    return [f"model.name: unknown model {name!r}; known: {', '.join(known)}; or a module:function"]


def _optimizers(spec: JobSpec) -> list[str]:
    default = spec.optimizers.sparse
    problems = _problem("optimizers.sparse", lambda: tables.table_spec("default", 1, default, None))
    problems += _problem("optimizers.dense", lambda: tables.dense_optimizer(spec.optimizers.dense))
    if problems:
        return problems
    for name, feature in spec.features.tables().items():
        # The default argument binds this round's values.
        def make(name: str = name, feature: SparseFeature = feature) -> object:
            return tables.table_spec(
                name,
                feature.dim,
                feature.optimizer or default,
                feature.initializer,
                feature.weights,
                rows=tables.RowPolicy.of(feature.admission, feature.eviction),
            )

        problems += _problem("features.sparse", make)
    return problems


def _problem(field: str, make: Callable[[], object]) -> list[str]:
    try:
        make()
    except InvalidInput as error:
        return [f"{field}: {error}"]
    return []
