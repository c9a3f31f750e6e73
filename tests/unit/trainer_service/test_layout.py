"""The way from features to tables and columns, and the models of strangers."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ps_service.sharding import ShardMap
from services.api.spec import JobSpec, validate
from services.kit.errors import InvalidInput
from trainer_service.layout import build_layout, load_model
from trainer_service.models import Model, ModelContext


def spec(model: str = "wide_deep", sparse: dict[str, Any] | None = None, **other: Any) -> JobSpec:
    return validate(
        {
            "name": "layout",
            "model": {"name": model, "hidden": [4]},
            "data": {"source": "synthetic://criteo"},
            "features": {"dense": "I1..I3", "sparse": sparse or {"C1..C2": {"dim": 4}}},
            **other,
        }
    )


@pytest.fixture
def user_module() -> Iterator[Any]:
    module = types.ModuleType("someones_models")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def test_columns_tables_and_combiners() -> None:
    job = spec(
        sparse={
            "C1": {"dim": 4},
            "user": {"dim": 2, "table": "people", "combiner": "mean"},
            "C2": {"dim": 3, "optimizer": {"sgd": {"lr": 0.5}}, "initializer": "zeros"},
            "friends": {"dim": 2, "table": "people", "separator": "|", "combiner": "sqrtn"},
        }
    )
    layout = build_layout(job, load_model(job))
    assert layout.dense == 3
    assert [t.name for t in layout.tables] == ["C1", "people", "C2"]
    assert [t.dim for t in layout.tables] == [5, 3, 4]
    assert layout.feature_tables == (0, 1, 2, 1)
    assert layout.columns == (0, 5, 8, 12)
    assert layout.width == 15
    assert layout.combiners == ("sum", "mean", "sum", "sqrtn")
    assert [t.optimizer for t in layout.tables] == ["adagrad", "adagrad", "sgd"]
    assert layout.tables[2].optimizer_params["lr"] == 0.5
    assert [t.initializer for t in layout.tables] == ["uniform", "uniform", "zeros"]


def test_joined_dense_features_come_before_the_rows() -> None:
    job = spec(sparse={"C1": {"dim": 4}, "C2": {"dim": 3}})
    model = dataclasses.replace(load_model(job), joined=True)  # deepfm's rows: dim + 1
    layout = build_layout(job, model)
    assert (layout.dense, layout.columns, layout.width) == (3, (3, 8), 12)
    plan = layout.planner(ShardMap.even(16, 1)).plan(
        np.array([7, 9], np.uint64), np.arange(3, dtype=np.int32), 1
    )
    matrix = np.full((1, layout.width), -1.0, np.float32)
    plan.gather(np.arange(9, dtype=np.float32), matrix)
    assert matrix.tolist() == [[-1, -1, -1, *range(9)]]


def test_planner_fits_the_layout() -> None:
    job = spec(model="lr")
    layout = build_layout(job, load_model(job))
    planner = layout.planner(ShardMap.even(8, 2))
    plan = planner.plan(np.array([5, 6, 5, 9], np.uint64), np.arange(5, dtype=np.int32), 2)
    assert plan.unique_keys == 4  # feature C1 has keys 5 and 6, C2 (a table of its own) 5 and 9
    assert plan.value_floats == 4


def test_one_table_needs_one_width(user_module: Any) -> None:
    user_module.uneven = lambda context: Model((3, 5), lambda: None)
    job = spec("someones_models:uneven", {"a": {"table": "t"}, "b": {"table": "t"}})
    with pytest.raises(InvalidInput, match=r"'a' and 'b' share table 't'.*3 and 5"):
        build_layout(job, load_model(job))


def test_own_model_gets_the_context(user_module: Any) -> None:
    seen: list[ModelContext] = []

    def mine(context: ModelContext) -> Model:
        seen.append(context)
        return Model(tuple(s.dim for s in context.sparse), lambda: None)

    user_module.mine = mine
    job = spec("someones_models:mine", training={"seed": 9})
    assert build_layout(job, load_model(job)).width == 8
    (context,) = seen
    assert (context.dense, context.hidden, context.seed) == (3, (4,), 9)
    assert [(s.name, s.dim) for s in context.sparse] == [("C1", 4), ("C2", 4)]


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (None, "gave a NoneType"),
        (Model((4,), lambda: None), "gave 1 widths for 2 sparse features"),
        (Model((4, 0), lambda: None), r"feature 'C2' wants rows of 0 floats"),
        (Model((4_097, 4), lambda: None), r"feature 'C1' wants rows of 4097 floats"),
    ],
)
def test_broken_own_models_are_refused(user_module: Any, made: object, says: str) -> None:
    user_module.broken = lambda context: made
    with pytest.raises(InvalidInput, match=says):
        load_model(spec("someones_models:broken"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("deepfn", "unknown model 'deepfn'; known: deepfm, dnn, lr, wide_deep"),
        ("no_such_module:create", "no_such_module"),
    ],
)
def test_unknown_models_are_named(name: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        load_model(spec(name))


def test_unknown_optimizer_names_the_table() -> None:
    job = spec(sparse={"C1": {"optimizer": "adamm"}})
    with pytest.raises(InvalidInput, match=r"'C1'.*'adamm'"):
        build_layout(job, load_model(job))


def test_a_job_without_sparse_features_is_refused() -> None:
    document = spec().model_dump(mode="json")
    document["features"]["sparse"] = {}
    with pytest.raises(InvalidInput, match=r"features\.sparse is empty"):
        load_model(validate(document))
