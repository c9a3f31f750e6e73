"""The in-memory reference: row numbers, pooling and Adagrad against plain arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.quality.keras_reference import Reference, number
from services.api.manifest import PositionEntry
from services.api.spec import JobSpec, validate
from trainer_service.batch import Batch
from trainer_service.layout import build_layout, load_model

LR, INITIAL = 0.05, 0.1


def job(table: str = "b") -> JobSpec:
    """Logistic regression over a, and b with several values: a row is one weight."""
    sparse: dict[str, Any] = {"a": {"dim": 1}, "b": {"dim": 1, "table": table, "separator": "|"}}
    return validate(
        {
            "name": "small",
            "model": {"name": "lr"},
            "data": {"source": "file://rows.tsv"},
            "features": {"dense": "x", "sparse": sparse},
        }
    )


def batch(keys: Sequence[int], offsets: Sequence[int], labels: Sequence[float]) -> Batch:
    at = PositionEntry(partition="rows", major=0, minor=len(labels))
    return Batch(
        labels=np.array(labels, np.float32),
        dense=np.zeros((len(labels), 1), np.float32),
        keys=np.array(keys, np.uint64),
        offsets=np.array(offsets, np.int32),
        first=(0, 0),
        next=at,
    )


def test_rows_are_numbered_per_table() -> None:
    batches = [batch([7, 8, 7], [0, 1, 2, 2, 3], [0, 1]), batch([9, 8], [0, 1, 2], [1])]
    own, total = number(batches, build_layout(job(), load_model(job())))
    assert total == 5  # a: 7, 8, 9; b: 7, 8
    assert [n.rows.tolist() for n in own] == [[0, 1, 3], [2, 4]]
    shared, total = number(batches, build_layout(job("a"), load_model(job("a"))))
    assert total == 3
    assert [n.rows.tolist() for n in shared] == [[0, 1, 0], [2, 1]]


def test_a_step_pools_sums_duplicates_and_is_adagrad() -> None:
    spec = job()
    layout = build_layout(spec, load_model(spec))
    # Sample 0: a = 7, b has none. Sample 1: a = 7, b = 7|8.
    (numbered,), rows = number([batch([7, 7, 7, 8], [0, 1, 2, 2, 4], [0, 1])], layout)
    model = Reference(spec, layout, rows)
    before = model.predict(*numbered.inputs()).numpy()
    weights = model.table.numpy()[:, 0]
    expected = 1 / (1 + np.exp(-np.array([weights[0], weights[0] + weights[1] + weights[2]])))
    np.testing.assert_allclose(before, expected, rtol=1e-5)

    np.testing.assert_allclose(model.step(*numbered.inputs()).numpy(), before, rtol=1e-6)
    each = (before - [0, 1]) / 2  # of the mean loss, by sample
    gradients = np.array([each.sum(), each[1], each[1]])
    moved = weights - LR * gradients / np.sqrt(INITIAL + gradients**2)
    np.testing.assert_allclose(model.table.numpy()[:, 0], moved, rtol=1e-5)
