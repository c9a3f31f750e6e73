"""What a projection refuses, by the argument's name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ps_service import _native
from tests.unit.ps_service.native.projection_reference import Batch, clicks

SMALL = Batch([4, 2], [0, 1], ["sum"] * 2, [[[1], [2]], [[3], [3]]], samples=2, dense=3)
FIT: dict[str, Any] = {
    "values": np.zeros(10, np.float32),
    "dense": np.zeros((2, 3), np.float32),
    "first": 0,
    "weights": np.zeros((9, 5), np.float32),
    "bias": np.zeros(5, np.float32),
    "out": np.zeros((2, 5), np.float32),
    "grads": np.zeros((2, 5), np.float32),
    "weight_grads": np.zeros((9, 5), np.float32),
    "bias_grads": np.zeros(5, np.float32),
}


def call_all(**changes: Any) -> None:
    """All verbs in turn, with the arguments of FIT but for the changes."""
    passed = FIT | changes
    projection = _native.Projection()
    projection.take(SMALL.plan(), passed["values"], passed["dense"], passed["first"])
    projection.forward(passed["weights"], passed["bias"], True, passed["out"])
    projection.backward(
        passed["weights"],
        True,
        passed.get("outputs", passed["out"]),
        passed["grads"],
        passed["weight_grads"],
        passed["bias_grads"],
    )


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("values", zeros(9), "values"),
        ("values", zeros(10).astype(np.float64), "values"),
        ("values", None, "values"),
        ("dense", zeros(3, 3), "dense: expected at most 2 samples from the batch's first, got 3"),
        ("dense", zeros(2, 4), "dense: expected at most 3 columns"),
        ("dense", zeros(6), "dense"),
        ("dense", zeros(2, 3).astype(np.float64), "dense"),
        ("first", 1, "dense: expected at most 2 samples .* got 2 from 1"),
        ("first", 2**63, "dense: expected at most 2 samples"),
        ("weights", zeros(8, 5), "weights"),
        ("weights", zeros(45), "weights"),
        ("weights", zeros(5, 9).T, "weights"),
        ("bias", zeros(4), "bias"),
        ("out", zeros(2, 4), "out"),
        ("out", zeros(1, 5), "out"),
        ("outputs", zeros(2, 4), "out"),
        ("outputs", zeros(10), "out"),
        ("outputs", None, "out"),
        ("grads", zeros(2, 6), "grads"),
        ("grads", zeros(3, 5), "grads"),
        ("weight_grads", zeros(9, 4), "weight_grads|bias_grads"),
        ("weight_grads", zeros(8, 5), "weight_grads"),
        ("bias_grads", zeros(6), "bias_grads"),
        ("bias_grads", np.zeros(5, np.int32), "bias_grads"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(name, value, says):
    call_all()
    with pytest.raises((ValueError, TypeError), match=says):
        call_all(**{name: value})


def test_outputs_are_not_written_into_read_only_memory():
    frozen = zeros(2, 5)
    frozen.flags.writeable = False
    with pytest.raises((ValueError, TypeError), match="out"):
        call_all(out=frozen)


def test_another_plans_projection_is_refused():
    batch, other = clicks(samples=8, keys=5), clicks(samples=8, keys=900)
    plan, projection = batch.plan(), _native.Projection()
    projection.take(other.plan(), other.values(other.plan()), zeros(8, 13), 0)
    with pytest.raises(ValueError, match="expected this plan's, got another's"):
        plan.add_up(projection)
    with pytest.raises(ValueError, match="expected this plan's"):
        plan.add_up(_native.Projection())
    with pytest.raises((TypeError, RuntimeError)):
        plan.add_up(zeros(3))  # type: ignore[arg-type]


def test_gradients_that_are_not_there_are_refused():
    plan, projection = SMALL.plan(), _native.Projection()
    for _ in range(2):  # those of the batch before don't count
        projection.take(plan, FIT["values"], FIT["dense"], 0)
        with pytest.raises(ValueError, match="projections: expected gradients"):
            plan.add_up(projection)
        layer = FIT["weights"], True, FIT["out"]
        projection.backward(*layer, FIT["grads"], FIT["weight_grads"], FIT["bias_grads"])
        assert plan.add_up(projection).tolist() == [0.0] * 10
