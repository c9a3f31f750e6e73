"""`make bench-train`: its rows are the synthetic source's, its ratios are right, and it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import train
from bench import workload as w
from tests.data import ROOT
from trainer_service.layout import build_layout, load_model
from trainer_service.sources import open_holdout, open_training


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> w.Data:
    return w.Data(tmp_path_factory.mktemp("bench"), train_rows=10_000, test_rows=3_000)


def test_a_shorter_file_is_the_beginning_of_the_longer_one(data: w.Data) -> None:
    whole, part = w.read(data.train()), w.read(data.train(5_000))
    assert len(whole.labels) == 10_000
    np.testing.assert_array_equal(part.keys[:4096], whole.keys[:4096])
    np.testing.assert_array_equal(part.labels[:4096], whole.labels[:4096])
    assert 0.1 < whole.labels.mean() < 0.5


def test_our_job_reads_what_the_other_sides_read(data: w.Data) -> None:
    holdout = {"holdout": {"source": data.test().as_uri()}}
    spec = w.job(data.train().as_uri(), 1_000, data=holdout)
    whole, test = w.read(data.train()), w.read(data.test())
    training, held_out = open_training(spec, rank=0, trainers=1), open_holdout(spec)
    assert held_out is not None
    for source, rows in ((training, whole), (held_out, test)):
        batch = source.next_batch(timeout=60)
        source.close()
        assert batch is not None
        np.testing.assert_array_equal(batch.labels, rows.labels[:1_000])
        np.testing.assert_array_equal(batch.dense, rows.dense[:1_000])
        np.testing.assert_array_equal(batch.keys.reshape(w.SLOTS, -1).T, rows.keys[:1_000])


def test_our_job_has_the_workloads_network(data: w.Data) -> None:
    spec = w.job(data.train().as_uri(), 1_000)
    layout = build_layout(spec, load_model(spec))
    assert layout.joined
    assert layout.width == w.DENSE + w.SLOTS * w.DIM
    assert len(layout.tables) == w.SLOTS
    network = load_model(spec).build()
    sizes = [layout.width * 256 + 256, 256 * 128 + 128, 128 * 64 + 64, 64 + 1]
    assert network.count_params() == sum(sizes)


def test_ratios_are_medians_of_the_rounds_and_the_better_variant_counts() -> None:
    rates = {
        "dense_graph": [100.0, 120.0, 110.0],
        "dense_xla": [90.0, 130.0, 100.0],
        "dense_micro": [120.0, 125.0, 130.0],  # beside the limit, not the limit
        "embedded": [50.0, 90.0, 66.0],  # of dense_graph: 0.5, 0.75, 0.6
        "remote": [40.0, 30.0, 55.0],  # 0.4, 0.25, 0.5
        "tf_graph": [20.0, 30.0, 20.0],
        "tf_xla": [25.0, 30.0, 33.0],  # embedded is 2, 3, 2 times that
        "keras": [5.0, 10.0, 6.0],
    }
    full = {"samples_per_second": 70.0, "auc": 0.76, "rss_mb": 900.0}
    result = train.summarise(rates, full, {**full, "auc": 0.75})
    assert result["best"] == {"dense_only": "dense_graph", "tf_tuned": "tf_xla"}
    assert result["embedded_ratio"] == pytest.approx(0.6)
    assert result["remote_ratio"] == pytest.approx(0.4)
    assert result["vs_tf_tuned"] == pytest.approx(2.0)
    assert result["vs_keras"] == pytest.approx(10.0)
    assert (result["dense_only_sps"], result["tf_tuned_sps"]) == (110.0, 30.0)
    assert result["dense_micro_sps"] == 125.0
    assert (result["auc_ours"], result["auc_tf"], result["rss_mb"]) == (0.76, 0.75, 900.0)


def test_a_failing_side_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"sides/dense_only failed:\n"):
        train.run_side("sides/dense_only", ["--cache", str(tmp_path), "--steps", "none"])


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_whole_bench_runs(tmp_path: Path) -> None:
    out = tmp_path / "train.json"
    command = [sys.executable, "bench/train.py", "--quick", "--cache", str(tmp_path / "cache")]
    done = subprocess.run(
        [*command, "--out", str(out)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(out.read_text())
    for side in ("embedded", "remote", "dense_only", "tf_tuned", "keras"):
        assert result[f"{side}_sps"] > 0
    assert all(0.4 < result[name] < 0.8 for name in ("auc_ours", "auc_tf"))
    assert result["rss_mb"] > 100
    assert result["bytes"]["lean"]["bytes_per_step"] == result["bytes_per_step"] > 10_000
    assert result["bytes_ratio"] == result["bytes_per_step"] / result["model_bytes_100m"]
    assert result["net_skipped"] or all(
        row["step_ms"] > 0 and row["bytes_per_step"] > 0 for row in result["net"].values()
    )
