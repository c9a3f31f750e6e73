"""JobSpec: ranges, defaults, round trip, and messages that name the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from services.api.ranges import expand
from services.api.spec import JobSpec, parse, validate
from services.kit.errors import InvalidInput

ISSUE_EXAMPLE = """
name: criteo-deepfm
model: {name: deepfm, hidden: [256, 128, 64]}
data: {source: "file://clicks.tsv.gz", format: criteo-tsv, holdout: {last: 0.2}, max_bad_rows: 100}
features: {label: label, dense: "I1..I13", sparse: {"C1..C26": {dim: 16}}}
training: {mode: hybrid, batch_size: 256, epochs: 2, staleness: 4, seed: 7}
optimizers:
  sparse: {adagrad: {lr: 0.05, initial_accumulator: 0.1}}
  dense: {adam: {lr: 0.001}}
resources: {sparse_ps: 2, dense_ps: 1, trainers: 2}
checkpoint: {to: "file://checkpoints", every: 60s, keep: 3}
"""
SMALL: dict[str, Any] = {
    "name": "clicks",
    "model": {"name": "lr"},
    "data": {"source": "synthetic://criteo"},
    "features": {"dense": "I1..I2", "sparse": {"C1": {}}},
}


def with_path(path: str, value: Any) -> dict[str, Any]:
    """SMALL with the field at dotted `path` set."""
    document: dict[str, Any] = json.loads(json.dumps(SMALL))
    *parents, last = path.split(".")
    place = document
    for key in parents:
        place = place.setdefault(key, {})
    place[last] = value
    return document


def test_the_example_of_the_documentation() -> None:
    spec = parse(ISSUE_EXAMPLE)
    assert list(spec.features.dense) == [f"I{i}" for i in range(1, 14)]
    assert list(spec.features.sparse) == [f"C{i}" for i in range(1, 27)]
    assert spec.checkpoint is not None and spec.checkpoint.every == 60.0
    assert spec.optimizers.sparse.params == {"lr": 0.05, "initial_accumulator": 0.1}


def test_defaults_are_filled_in() -> None:
    spec = validate(SMALL)
    assert (spec.training.mode, spec.training.batch_size, spec.resources.trainers) == (
        "hybrid",
        256,
        1,
    )
    assert (spec.optimizers.sparse.name, spec.optimizers.dense.name) == ("adagrad", "adam")
    assert spec.checkpoint is None


@pytest.mark.parametrize(
    "document",
    [
        yaml.safe_load(ISSUE_EXAMPLE),
        SMALL,
        with_path("features.sparse.C1", {"dim": 4, "initializer": "zeros", "optimizer": "sgd"}),
        with_path("features.sparse.C1", {"weights": "fp16", "optimizer": {"adamw": {"lr": 0.1}}}),
        with_path(
            "optimizers.sparse",
            {
                "adagrad": None,
                "clip": {"norm": 1, "value": 0.5},
                "schedule": {"piecewise": {1000: 0.5, 5000: 0.1, "warmup": 10}},
                "weight_decay": 0.01,
            },
        ),
        with_path("optimizers.dense", {"schedule": "cosine", "sgd": {"lr": 0.1}}),
        with_path("features.sparse.X", {"cross": ["C1", "C2"]}),
        with_path("features.sparse.B", {"bucketize": [0.5, 2]}),
        with_path("features.dense", {"I1": {"clip": [0, 10], "log": True}, "I2..I4": None}),
    ],
)
def test_a_spec_travels_as_json(document: dict[str, Any]) -> None:
    spec = validate(document)
    text = json.dumps(spec.model_dump(mode="json"), allow_nan=False)
    assert validate(json.loads(text)) == spec
    assert parse(text) == spec


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("nmae", "x", "nmae: Extra inputs"),
        ("name", "Clicks!", "name: .*pattern.*Clicks!"),
        ("training.batch_sise", 1, "training.batch_sise: Extra inputs"),
        ("training.batch_size", 0, "training.batch_size: .*greater than or equal to 1.*0"),
        ("training.batch_size", "many", "training.batch_size: .*integer.*many"),
        ("training.staleness", 65, "training.staleness: .*less than or equal to 64"),
        ("training.wire", {"values": "fp8"}, "training.wire.values: .*scaled-fp16.*fp8"),
        (
            "training",
            {"mode": "sync", "wire": {"values": "scaled-fp16"}},
            "training: wire.values: scaled-fp16 .* use fp32 or fp16",
        ),
        ("training.mode", "fast", "training.mode: .*hybrid.*fast"),
        ("training.pipeline", {"depth": -1}, "training.pipeline.depth: .*greater"),
        ("training.pipeline", {"depth": 5}, "pipeline.depth is 5, must be at most staleness, 4"),
        (
            "training",
            {"mode": "sync", "pipeline": {"depth": 1}},
            "training: pipeline.depth is 1: mode sync reads no row ahead",
        ),
        ("model", {}, "model.name: Field required"),
        ("model.hidden", [0], "model.hidden.0: .*greater"),
        ("data.source", "clicks.tsv", "data.source: 'clicks.tsv' must start with one of file://"),
        ("data.source", "ftp://x/y", "data.source: .*must start with"),
        ("data.source", "file://", "data.source: .*names nothing"),
        ("data.source", "kafka://h:9092", "data.source: .*kafka://HOST:PORT/TOPIC"),
        ("data.holdout", {}, "data.holdout: give exactly one of last and source"),
        ("data.holdout", {"last": 1.0}, "data.holdout.last: .*less than 1"),
        ("data.format", "json", "data: format json is for kafka:// sources"),
        ("data.endless", True, "data: endless is for kafka:// sources"),
        ("features", {}, "features: name at least one dense or sparse feature"),
        ("features.dense", "I1..J3", "features.dense: 'I1..J3' is not a range"),
        ("features.dense", ["I1", "I1"], "features.dense: feature 'I1' is given twice"),
        ("features.dense", ["I1", 3], "features.dense: 3 is not a name"),
        ("features.dense", "", "features.dense: a name must not be empty"),
        ("features.dense", {"I1": {"clip": [2, 1]}}, "features.dense.I1.clip: low 2.0 is above"),
        ("features.dense", {"I1": {"clip": [0, float("inf")]}}, "features.dense.I1.clip.1: .*fini"),
        ("features.sparse.C1.dim", 0, "features.sparse.C1.dim: .*greater"),
        ("features.sparse.C1.bucketize", [2, 1], "features.sparse.C1: bucketize needs .*rising"),
        ("features.sparse.C1.cross", ["a"], "features.sparse.C1: cross needs at least two"),
        ("features.sparse.I1", {}, "features: feature 'I1' is both dense and sparse"),
        ("features.sparse.C2", {"table": "C1", "dim": 8}, "'C1' and 'C2' share .*differ in dim"),
        ("optimizers.sparse", {"sgd": {}, "adam": {}}, "optimizers.sparse: write one name"),
        ("optimizers.sparse", {"clip": {"norm": 1}}, "optimizers.sparse: write one name .*beside"),
        ("optimizers.sparse", {"sgd": {}, "clip": {}}, "optimizers.sparse.clip: give value, norm"),
        ("optimizers.sparse", {"sgd": {}, "clip": {"norm": 0}}, "sparse.clip.norm: .*greater"),
        ("optimizers.sparse", {"sgd": {}, "schedule": {}}, "sparse.schedule: write one name"),
        ("optimizers.sparse", {"sgd": {}, "weight_decay": -1}, "sparse.weight_decay: .*greater"),
        ("features.sparse.C1.weights", "fp8", "features.sparse.C1.weights: .*'fp32', 'fp16' or"),
        (
            "features.sparse.C2",
            {"table": "C1", "weights": "bf16"},
            "'C1' and 'C2' share .*differ in weights",
        ),
        ("optimizers.sparse", {"sgd": {"lr": "fast"}}, "optimizers.sparse.params.lr: .*number"),
        ("optimizers.dense", {"adam": {"lr": float("nan")}}, "optimizers.dense.params.lr: .*fini"),
        ("resources.trainers", 0, "resources.trainers: .*greater"),
        ("checkpoint", {}, "checkpoint.to: Field required"),
        ("checkpoint.to", "models", "checkpoint.to: 'models' must be file://FOLDER"),
        ("checkpoint.to", "s3://", "checkpoint.to: 's3://' must be"),
        (
            "checkpoint",
            {"to": "s3://b/x", "every": "soon"},
            "checkpoint.every: 'soon' is not a dur",
        ),
        ("training.mode", "k-step", "training.mode: .*'kstep'"),
        ("training.k", 0, "training.k: .*greater"),
        ("checkpoint", {"to": "s3://b/x", "every": "0s"}, "checkpoint.every: .*greater than 0"),
        ("checkpoint", {"to": "s3://b/x", "keep": 0}, "checkpoint.keep: .*greater"),
    ],
)
def test_each_mistake_is_named_by_its_field(path: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        validate(with_path(path, value))


@pytest.mark.parametrize(
    ("training", "depth"),
    [
        ({}, 2),
        ({"staleness": 1}, 1),
        ({"staleness": 0}, 0),
        ({"mode": "sync"}, 0),
        ({"pipeline": {"depth": 4}}, 4),
        ({"mode": "sync", "pipeline": {"depth": 0}}, 0),
    ],
)
def test_how_many_batches_are_read_ahead(training: dict[str, Any], depth: int) -> None:
    spec = validate({**SMALL, "training": training})
    assert spec.training.depth == spec.rows_ahead == depth


@pytest.mark.parametrize(
    ("trainers", "training", "depth"),
    [(1, {}, 0), (2, {}, 2), (1, {"pipeline": {"depth": 1}}, 1), (2, {"mode": "sync"}, 0)],
)
def test_rows_in_the_one_trainers_own_memory_are_not_read_ahead_unless_asked(
    trainers: int, training: dict[str, Any], depth: int
) -> None:
    resources = {"placement": "embedded", "trainers": trainers}
    spec = validate({**SMALL, "training": training, "resources": resources})
    assert spec.rows_ahead == depth


def test_with_shards_in_the_trainers_their_number_is_that_of_trainers() -> None:
    resources = {"placement": "embedded", "trainers": 3}
    spec = validate({**SMALL, "resources": resources})
    assert (spec.resources.sparse_ps, spec.resources.embedded) == (3, True)
    assert validate(spec.model_dump(mode="json")) == spec
    with pytest.raises(InvalidInput, match=r"resources: sparse_ps is 2, but .* 3 trainers .* out"):
        validate({**SMALL, "resources": {**resources, "sparse_ps": 2}})
    scaled = {
        **SMALL,
        "resources": resources,
        "checkpoint": {"to": "file://c"},
        "autoscale": {"trainers": {"max": 4}, "sparse_ps": {"max": 4}},
    }
    with pytest.raises(InvalidInput, match=r"autoscale\.sparse_ps: with placement embedded"):
        validate(scaled)
    validate({**scaled, "autoscale": {"trainers": {"max": 4}}})


def test_a_kafka_source_is_read_once_in_a_known_format() -> None:
    kafka = with_path("data", {"source": "kafka://h:9092/clicks", "format": "json"})
    assert validate(kafka).data.format == "json"
    with pytest.raises(InvalidInput, match=r"training\.epochs: a kafka:// source is read once"):
        validate({**kafka, "training": {"epochs": 2}})
    with pytest.raises(InvalidInput, match=r"data: a kafka:// source needs format"):
        validate(with_path("data", {"source": "kafka://h:9092/clicks"}))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adagrad", "amsgrad"])
def test_kstep_takes_only_dense_optimizers_with_a_rule(optimizer: str) -> None:
    document = with_path("optimizers.dense", optimizer)
    with pytest.raises(
        InvalidInput, match=rf"optimizers\.dense: .* kstep .*'{optimizer}' has none"
    ):
        validate({**document, "training": {"mode": "kstep"}})
    for mode in ("sync", "hybrid", "async"):
        assert validate({**document, "training": {"mode": mode}}).training.mode == mode
    for allowed in ("adam", "adamw"):
        document = with_path("optimizers.dense", allowed)
        spec = validate({**document, "training": {"mode": "kstep", "k": 3}})
        assert spec.training.k == 3


def test_all_mistakes_come_at_once() -> None:
    document = with_path("training.batch_size", 0)
    document["resources"] = {"trainers": 0}
    with pytest.raises(InvalidInput) as caught:
        validate(document)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "training.batch_size",
        "resources.trainers",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a JobSpec is a mapping, got NoneType"),
        ("[1]", "a JobSpec is a mapping, got list"),
        ("a: [", "not YAML or JSON"),
        ("name: a\nname: b", "key 'name' is given twice"),
        ("features: {sparse: {C1: {dim: 4}, C1: {dim: 8}}}", "key 'C1' is given twice"),
        ("name: 2024-13-45", "not YAML or JSON: month"),
        ("a: " + "[" * 50_000, "not YAML or JSON: nested deeper than 50 levels"),
        ("!!python/object/apply:os.system ['true']", "not YAML or JSON"),
        (b"\xff\xfe\x00", "not YAML or JSON"),
    ],
)
def test_text_that_is_no_spec(text: str | bytes, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        parse(text)


def test_aliases_of_aliases_cost_nothing() -> None:
    lines = ["nmae0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"nmae{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 20)]
    with pytest.raises(InvalidInput, match="nmae19: Extra inputs") as caught:
        parse("\n".join(lines))
    assert len(str(caught.value)) < 10_000


@given(st.text() | st.binary())
def test_any_text_is_a_spec_or_invalid_input(text: str | bytes) -> None:
    try:
        assert isinstance(parse(text), JobSpec)
    except InvalidInput as error:
        assert str(error)


@given(
    prefix=st.from_regex(r"[A-Za-z_ü][A-Za-z_ü0-9.]{0,6}[A-Za-z_]|[A-Za-z_]?", fullmatch=True),
    first=st.integers(0, 10**6),
    count=st.integers(1, 50),
)
def test_a_range_counts_from_first_to_last(prefix: str, first: int, count: int) -> None:
    name = f"{prefix}{first}..{prefix}{first + count - 1}"
    if ".." in prefix:
        return
    assert expand(name) == [f"{prefix}{number}" for number in range(first, first + count)]


@given(width=st.integers(2, 5), first=st.integers(0, 9), count=st.integers(1, 30))
def test_a_range_with_leading_zeros_keeps_its_width(width: int, first: int, count: int) -> None:
    last = first + count - 1
    names = expand(f"f{first:0{width}d}..f{last:0{width}d}")
    assert names == [f"f{number:0{width}d}" for number in range(first, last + 1)]


@pytest.mark.parametrize("name", ["C1", "I 1", "a.b", "größe", "1"])
def test_a_plain_name_stands_for_itself(name: str) -> None:
    assert expand(name) == [name]


@pytest.mark.parametrize(
    "name", ["", "  ", "..", "C..C3", "C1..", "..C3", "C1..D3", "C3..C1", "C1..C10001", "C1..3"]
)
def test_a_malformed_range_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"name|range"):
        expand(name)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("60s", 60), ("5m", 300), ("2h", 7200), ("1d", 86400), ("1.5 m", 90), (7, 7)],
)
def test_durations(text: str | int, seconds: float) -> None:
    spec = validate(with_path("checkpoint", {"to": "file://x", "every": text}))
    assert spec.checkpoint is not None and spec.checkpoint.every == seconds


def test_features_know_their_tables_and_columns() -> None:
    document = with_path(
        "features",
        {
            "label": "click",
            "dense": {"age": {"column": "user_age"}},
            "sparse": {
                "user": {},
                "friend": {"table": "user", "column": "friend_id"},
                "pair": {"cross": ["user", "ad"]},
            },
        },
    )
    features = validate(document).features
    assert list(features.tables()) == ["user", "pair"]
    assert features.columns() == ["click", "user_age", "user", "friend_id", "ad"]
