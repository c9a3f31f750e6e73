"""admission and eviction of a JobSpec: forms, refusals, and agreement with the native core."""

from __future__ import annotations

import pydantic
import pytest

from ps_service import _native
from ps_service.tables import RowPolicy
from services.api.features import Features
from services.api.lifecycle import Admission, Eviction


def test_defaults_are_those_of_the_native_core() -> None:
    for name in ("count", "probability"):
        assert Admission.model_validate(name).policy() == (name, _native.ADMISSIONS[name])
    for name in ("lru", "lfu", "norm", "score"):
        assert Eviction.model_validate(name).rules() == {name: _native.EVICTION_RULES[name]}
        assert Eviction.model_validate({name: None}).rules() == {name: _native.EVICTION_RULES[name]}


def test_the_core_accepts_every_bound_of_the_schema() -> None:
    for n, keys, error in [(1, 1, 1e-6), (15, 10**12, 0.5)]:
        admission = Admission.model_validate({"count": {"n": n, "keys": keys, "error": error}})
        RowPolicy.of(admission, None).native()
    long = {"half_life": 1e9, "idle": 1e9}
    for eviction in [
        {"ttl": 1, "lru": {"rows": 1}, "norm": {"below": 1e-18, "idle": 0}, "floor": 1},
        {"ttl": 1e9, "lfu": {"rows": 10**15, "half_life": 0}, "floor": 10**15},
        {"score": {"below": 1e6, "show": 1e6, "click": 1e6, **long}},
        {"score": {"below": 1e-18, "show": 0, "click": 0, "half_life": 0, "idle": 0}},
    ]:
        RowPolicy.of(None, Eviction.model_validate(eviction)).native()


def test_durations_and_the_floor_become_parameters() -> None:
    eviction = Eviction.model_validate({"ttl": "30d", "norm": {"idle": "2h"}, "floor": 100})
    rules = eviction.rules()
    assert rules["ttl"] == {"seconds": 30 * 86_400.0}
    assert rules["norm"]["idle"] == 7200.0
    assert rules["floor"] == {"rows": 100.0}
    assert Eviction.model_validate({"floor": 100}).rules() == {}


@pytest.mark.parametrize(
    ("admission", "message"),
    [
        ({}, "exactly one of count and probability"),
        ({"count": {}, "probability": {}}, "exactly one of count and probability"),
        ({"count": {"n": 16}}, "less than or equal to 15"),
        ({"bloom": {}}, "Extra inputs"),
    ],
)
def test_bad_admissions_are_refused(admission: object, message: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=message):
        Admission.model_validate(admission)


@pytest.mark.parametrize(
    ("eviction", "message"),
    [
        ({"lru": {}, "lfu": {}}, "lfu and lru exclude each other"),
        ({"lfu": {}, "score": {}}, "lfu and score exclude each other"),
        ({"ttl": "never"}, "not a duration"),
        ({"ttl": 0}, "greater than or equal to 1"),
        ({"age": {}}, "Extra inputs"),
    ],
)
def test_bad_evictions_are_refused(eviction: object, message: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=message):
        Eviction.model_validate(eviction)


def test_features_that_share_a_table_share_its_policies() -> None:
    sparse = {"a": {"table": "t", "eviction": {"ttl": "1d"}}, "b": {"table": "t"}}
    with pytest.raises(pydantic.ValidationError, match="differ in eviction"):
        Features.model_validate({"sparse": sparse})


@pytest.mark.parametrize(
    "section",
    [
        Admission.model_validate("probability"),
        Admission.model_validate({"count": {"n": 3}}),
        Eviction.model_validate({"lru": None, "floor": 5}),
        Eviction.model_validate({"ttl": "30d", "norm": {"below": 0.1}}),
    ],
    ids=str,
)
def test_a_section_reads_what_it_writes(section: Admission | Eviction) -> None:
    """The gateway keeps a spec as JSON."""
    assert type(section).model_validate_json(section.model_dump_json()) == section


def test_policies_survive_the_wire() -> None:
    admission = Admission.model_validate({"probability": {"p": 0.25}})
    eviction = Eviction.model_validate({"score": {"click": 3}, "ttl": "1d"})
    for policy in (RowPolicy(), RowPolicy.of(admission, eviction)):
        assert RowPolicy.from_proto(policy.to_proto()) == policy
    assert RowPolicy.of(None, eviction).scores
    assert not RowPolicy.of(admission, None).scores
