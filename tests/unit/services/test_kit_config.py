"""Settings from the environment; the way to extend by name."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from services.checkpoint.config import CheckpointServiceConfig
from services.kit import config, plugins
from services.kit.errors import InvalidInput
from services.kit.member import MemberConfig


@dataclasses.dataclass(frozen=True)
class Sample:
    PREFIX: ClassVar[str] = "SAMPLE_"
    name: str
    count: int = 3
    share: float = 0.5
    on: bool = False


def test_values_are_read_by_type_and_defaults_stand() -> None:
    env = {"SAMPLE_NAME": "x", "SAMPLE_ON": "Yes", "SAMPLE_COUNT": "-4", "OTHER_NAME": "y"}
    assert config.load(Sample, env) == Sample("x", -4, 0.5, True)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, "SAMPLE_NAME is not set; Sample needs it"),
        ({"SAMPLE_NAME": "x", "SAMPLE_NMAE": "y"}, "unknown setting SAMPLE_NMAE; known: SAMPLE_C"),
        ({"SAMPLE_NAME": "x", "SAMPLE_COUNT": "3.5"}, r"SAMPLE_COUNT='3\.5' is not a int"),
        ({"SAMPLE_NAME": "x", "SAMPLE_SHARE": "half"}, "SAMPLE_SHARE='half' is not a float"),
        ({"SAMPLE_NAME": "x", "SAMPLE_ON": "maybe"}, "SAMPLE_ON='maybe' is not a bool"),
    ],
)
def test_a_wrong_variable_is_named(env: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        config.load(Sample, env)


@pytest.mark.parametrize(
    "settings",
    [
        Sample("ünï=x", 7, 1e-9, True),
        MemberConfig(job="a-b", generation=3, rank=0, redis_url="redis://h:1/0"),
        CheckpointServiceConfig(redis_url="redis://h:1/0", port=1),
    ],
)
def test_settings_travel_through_the_environment(settings: config.Config) -> None:
    assert config.load(type(settings), config.environment(settings)) == settings


def test_children_inherit_all_but_our_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBERMESH_MEMBER_JOB", "mine")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://s3")
    inherited = config.inherited()
    assert "EMBERMESH_MEMBER_JOB" not in inherited
    assert inherited["AWS_ENDPOINT_URL"] == "http://s3"


@pytest.mark.parametrize("field", ["scan_seconds", "pause_seconds", "hold_seconds"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_checkpoint_deadlines_are_above_zero(field: str, value: float) -> None:
    name = f"EMBERMESH_CHECKPOINT_{field.upper()}={value}"
    with pytest.raises(InvalidInput, match=name):
        CheckpointServiceConfig(redis_url="x", **{field: value})  # type: ignore[arg-type]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "shapes"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "round.py").write_text("create = 'a circle'\nother = 'a ball'\n")
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "_private.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield_name = "shapes"
    for name in [n for n in sys.modules if n.split(".")[0] == yield_name]:
        monkeypatch.delitem(sys.modules, name)
    return yield_name


def test_a_name_is_a_module(package: str) -> None:
    assert plugins.names(package) == ["broken", "round"]
    assert plugins.load(package, "round") == "a circle"
    assert plugins.load(package, "shapes.round:other") == "a ball"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("square", "unknown shape 'square'; known: broken, round"),
        ("_private", "unknown shape '_private'"),
        ("broken", "can't load 'broken': ZeroDivisionError"),
        ("shapes.round:nothing", "can't load 'shapes.round:nothing': AttributeError"),
        ("no.such:thing", "can't load 'no.such:thing': ModuleNotFoundError"),
        (":x", "can't load ':x'"),
    ],
)
def test_a_name_that_loads_nothing_is_the_users_mistake(
    package: str, name: str, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        plugins.load(package, name)
