"""What `make bench-quality` asks for, keeps and makes of its runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.quality import plots
from bench.quality.cases import DATA, SIDES, document
from bench.quality.run import WorkFile, key_of
from bench.quality.summary import rate, summarise, table
from services.api.spec import validate


def run(side: str, seed: int, auc: float, **fields: Any) -> dict[str, Any]:
    return {
        "key": f"{side}{seed}", "data": "w1", "side": side, "seed": seed, "auc": auc,
        "logloss": 0.5, "bayes_auc": 0.8, "samples": 1000, "test_rows": 100, "load": [1.0, 3.0],
        "curve": [[10.0, 100, 0.6], [12.0, 500, 0.7], [13.0, 1000, 0.71]], **fields,
    }  # fmt: skip


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("side", SIDES)
def test_sides_differ_in_nothing_but_mode_and_trainers(data: str, side: str) -> None:
    spec = validate(document(data, side, 3, quick=False))
    same = validate(document(data, "sync", 3, quick=False))
    assert (spec.training.mode, spec.resources.trainers) == (SIDES[side].mode, SIDES[side].trainers)
    assert spec.training.depth == (0 if spec.training.mode == "sync" else spec.training.staleness)
    assert (spec.data, spec.features, spec.optimizers) == (
        same.data,
        same.features,
        same.optimizers,
    )
    for field in ("batch_size", "epochs", "seed", "staleness", "k"):
        assert getattr(spec.training, field) == getattr(same.training, field)


def test_only_criteo_is_read_twice_and_never_in_a_quick_run() -> None:
    epochs = {d: document(d, "sync", 1, quick=False)["training"]["epochs"] for d in DATA}
    assert epochs == {"w1": 1, "criteo": 2, "trivago": 1}
    assert {document(d, "sync", 1, quick=True)["training"]["epochs"] for d in DATA} == {1}


def test_an_interrupted_work_file_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "build" / "runs.jsonl"
    WorkFile(path).add(run("sync", 1, 0.75))
    with path.open("a") as file:
        file.write(json.dumps(run("sync", 2, 0.74))[:30])  # cut short
    assert set(WorkFile(path).runs()) == {"sync1"}
    WorkFile(path).add(run("hybrid", 1, 0.76))
    assert WorkFile(path).runs() == {
        "sync1": run("sync", 1, 0.75),
        "hybrid1": run("hybrid", 1, 0.76),
    }


def test_a_run_is_another_when_its_job_side_or_code_is() -> None:
    job = document("w1", "sync_1", 1, quick=True)
    keys = {
        key_of("sync_1", job, "a"),
        key_of("keras", job, "a"),
        key_of("sync_1", job, "b"),
        key_of("sync_1", document("w1", "sync_1", 2, quick=True), "a"),
        key_of("sync_1", document("w1", "sync_1", 1, quick=False), "a"),
    }
    assert len(keys) == 5
    assert key_of("sync_1", document("w1", "sync_1", 1, quick=True), "a") in keys


def test_gaps_are_means_over_the_seeds_that_both_have() -> None:
    runs = [
        run("sync", 1, 0.750), run("sync", 2, 0.760), run("sync", 3, 0.9),
        run("hybrid", 1, 0.749), run("hybrid", 2, 0.756),
        run("kstep", 4, 0.7),
    ]  # fmt: skip
    result = summarise(runs)
    w1 = result["w1"]
    assert w1["gap"]["hybrid"] == pytest.approx(0.0025)
    assert (w1["gap"]["kstep"], w1["gap"]["async"]) == (None, None)
    assert w1["sides"]["hybrid"]["auc_mean"] == pytest.approx(0.7525)
    assert w1["sides"]["hybrid"]["auc_spread"] == pytest.approx(0.007)
    assert "async" not in w1["sides"] and "criteo" not in result
    assert result["machine"]["load_mean"] == 2.0 and result["machine"]["load_max"] == 3.0
    assert "w1: above the bound of 0.002: hybrid" in table(result)
    json.dumps(result, allow_nan=False)


def test_sides_that_saw_other_rows_are_not_compared() -> None:
    with pytest.raises(ValueError, match=r"w1: sides differ.*(999|1000).*(999|1000)"):
        summarise([run("sync", 1, 0.7), run("hybrid", 1, 0.7, samples=999)])


def test_a_rate_leaves_out_the_start_and_needs_two_points() -> None:
    assert rate(run("sync", 1, 0.7)["curve"]) == pytest.approx(900 / 3)
    assert rate([[1.0, 50, None], [2.0, 1000, 0.7]]) is None
    assert rate([]) is None


def test_a_band_is_of_the_samples_that_all_seeds_have() -> None:
    long = run("sync", 1, 0.7, curve=[[1.0, 10, 0.1], [2.0, 100, 0.5], [3.0, 900, 0.7]])
    short = run("sync", 2, 0.7, curve=[[1.0, 200, None], [2.0, 300, 0.6], [3.0, 700, 0.8]])
    samples, aucs = plots.band([long, short])
    assert (samples[0], samples[-1]) == (300, 700)
    np.testing.assert_allclose(aucs[:, 0], [0.55, 0.6])  # a quarter of the way from 0.5 to 0.7
    np.testing.assert_allclose(aucs[:, -1], [0.65, 0.8])
    samples, aucs = plots.band([long, run("sync", 3, 0.7, curve=[])])
    assert (samples.shape, aucs.shape) == ((0,), (2, 0))


def test_pictures_are_drawn_of_whatever_runs_there_are(tmp_path: Path) -> None:
    runs = [run(side, seed, 0.7 + seed / 1e3) for side in ("sync", "hybrid") for seed in (1, 2)]
    plots.draw(runs, summarise(runs), tmp_path)
    for name in ("quality-auc.png", "quality-rate.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
