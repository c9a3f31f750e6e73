"""Bytes of a step: read off a page of metrics, and set beside the model's."""

from __future__ import annotations

from pathlib import Path

import prometheus_client
import pyarrow.parquet as pq
import pytest

from bench import workload as w
from bench.sides import step_bytes as sb
from services.kit.rpc_metrics import ClientMetrics
from trainer_service.metrics import TrainerMetrics


def test_a_page_of_a_trainer_is_understood() -> None:
    registry = prometheus_client.CollectorRegistry()
    trainer, calls = TrainerMetrics(registry), ClientMetrics(registry)
    trainer.steps.inc(7)
    trainer.keys.inc(70)
    verbs = {
        ("SparsePs", "Pull"): 1, ("SparsePs", "Push"): 20, ("SparsePs", "Configure"): 300,
        ("DensePs", "Push"): 4_000, ("DensePs", "Merge"): 50_000, ("Checkpoint", "Push"): 600_000,
    }  # fmt: skip
    for (service, verb), count in verbs.items():
        for direction in ("in", "out"):
            calls._bytes.labels(service, verb, direction).inc(count)
    page = prometheus_client.generate_latest(registry).decode()
    assert sb.look(page) == sb.Look(steps=7, keys=70, sparse=2 * 21, dense=2 * 54_000)


def test_bytes_of_a_step_are_means() -> None:
    found = sb.per_step(sb.Look(20, 200, 4_000, 2_000), whole=3_000_000)
    assert found == {
        "distinct_keys": 10.0,
        "sparse_bytes": 200.0,
        "dense_bytes": 100.0,
        "bytes_per_step": 300.0,
        "bytes_ratio": pytest.approx(1e-4),
    }
    with pytest.raises(ValueError, match="give it more steps"):
        sb.per_step(sb.Look(0, 0, 0, 0), whole=1)


def test_the_wide_workload_has_as_many_values_as_it_says(tmp_path: Path) -> None:
    data = w.Data(tmp_path, 0, 0)
    wide, narrow = (pq.read_table(path) for path in (data.wide(4_096), data.train(4_096)))
    distinct = [sum(len(t[f"C{i + 1}"].unique()) for i in range(w.SLOTS)) for t in (wide, narrow)]
    assert distinct[0] > 1.2 * distinct[1]
    assert sb.model_bytes(0) == 4 * 16 * 100_000_000
