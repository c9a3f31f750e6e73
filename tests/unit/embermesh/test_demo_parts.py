"""The demo's own arithmetic: speed, verdict, spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from embermesh import demo
from services.api.spec import validate
from services.kit import errors


def test_speed_is_the_mean_while_rows_were_trained() -> None:
    meter = demo.Speedometer()
    for samples, now in ((0, 0.0), (0, 5.0), (1000, 6.0), (3000, 8.0), (3000, 50.0)):
        meter.see(samples, now)
    assert meter.samples_per_second == pytest.approx(1000.0)


@pytest.mark.parametrize("looks", [[], [(0, 1.0)], [(500, 1.0), (500, 2.0)]])
def test_no_growth_is_no_speed(looks: list[tuple[int, float]]) -> None:
    meter = demo.Speedometer()
    for samples, now in looks:
        meter.see(samples, now)
    assert meter.samples_per_second == 0.0


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({}, True),
        ({"restored_auc": 0.75 + 5e-7}, True),
        ({"restored_auc": 0.75 + 2e-6}, False),
        ({"restored_auc": None}, False),
        ({"auc": None}, False),
        ({"state": "failed"}, False),
    ],
)
def test_the_demo_passes_only_with_the_same_auc_after_the_restore(
    changes: dict[str, Any], passed: bool
) -> None:
    outcome = {"state": "succeeded", "auc": 0.75, "restored_auc": 0.75, **changes}
    assert demo.passed(outcome) is passed


def test_the_demos_spec_trains_enough_and_keeps_its_checkpoint_in_its_folder(
    tmp_path: Path,
) -> None:
    document = demo.load_spec(demo.ROOT / "examples" / "demo.yaml", tmp_path)
    spec = validate(document)
    assert spec.checkpoint is not None
    assert spec.checkpoint.to == f"file://{tmp_path}/checkpoints"
    rows = int(spec.data.source.split("rows=")[1].split("&")[0])
    assert rows * spec.training.epochs >= 600_000
    assert spec.resources.sparse_ps != demo.RESTORED_SHARDS
    assert (spec.resources.sparse_ps, spec.resources.trainers) == (2, 2)


def test_a_missing_spec_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidInput, match=r"gone\.yaml"):
        demo.load_spec(tmp_path / "gone.yaml", tmp_path)
