"""AUC against brute force, and the sliding window against the exact value and its own bound."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_service.evaluate import Evaluation, Holdout, Progressive, exact_auc, log_losses


def brute_force(labels: list[int], scores: list[float]) -> float | None:
    positives = [s for y, s in zip(labels, scores, strict=True) if y]
    negatives = [s for y, s in zip(labels, scores, strict=True) if not y]
    if not positives or not negatives:
        return None
    wins = sum((p > n) + 0.5 * (p == n) for p in positives for n in negatives)
    return wins / (len(positives) * len(negatives))


# Few distinct scores, so that ties are common.
SCORED = st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0])))


@given(SCORED)
def test_exact_auc_is_the_share_of_won_pairs(rows: list[tuple[int, float]]) -> None:
    labels, scores = [y for y, _ in rows], [s for _, s in rows]
    assert exact_auc(labels, scores) == pytest.approx(brute_force(labels, scores))


@given(SCORED)
def test_window_is_within_its_own_error_bound(rows: list[tuple[int, float]]) -> None:
    labels, scores = [y for y, _ in rows], [s for _, s in rows]
    progressive = Progressive(bins=16)
    progressive.add(np.array(labels, np.float32), np.array(scores, np.float32))
    window, exact = progressive.window(), brute_force(labels, scores)
    assert window.samples == len(rows)
    if exact is None:
        assert window.auc is None
    else:
        assert window.auc is not None
        assert window.auc_error is not None
        assert abs(window.auc - exact) <= window.auc_error + 1e-12


def clicks(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = 1 / (1 + np.exp(-rng.normal(-1.5, 1.2, n)))
    return (rng.random(n) < p).astype(np.float32), p.astype(np.float32)


def test_window_of_click_like_data() -> None:
    labels, p = clicks(50_000)
    progressive = Progressive()
    for part in np.array_split(np.arange(len(labels)), 313):
        progressive.add(labels[part], p[part])
    window = progressive.window()
    assert window.auc == pytest.approx(exact_auc(labels, p), abs=1e-3)
    assert window.auc_error is not None
    assert window.auc_error < 2e-3
    assert window.loss == pytest.approx(log_losses(labels, p).mean(), rel=1e-9)
    assert window.copc == pytest.approx(labels.sum() / p.sum(), rel=1e-5)


def test_window_forgets() -> None:
    progressive = Progressive(window=1_000, chunks=10)
    bad = np.linspace(0.01, 0.99, 500, dtype=np.float32)
    progressive.add((bad < 0.5).astype(np.float32), bad)  # every pair lost
    assert progressive.window().auc == pytest.approx(0.0, abs=1e-9)
    for seed in range(30):
        labels, p = clicks(100, seed)
        progressive.add(labels, p)
    window = progressive.window()
    assert window.samples == 1_000
    recent = [clicks(100, seed) for seed in range(20, 30)]
    exact = exact_auc(
        np.concatenate([y for y, _ in recent]), np.concatenate([p for _, p in recent])
    )
    assert window.auc == pytest.approx(exact, abs=5e-3)


def test_extreme_probabilities_stay_finite() -> None:
    progressive = Progressive()
    progressive.add(np.array([1, 0, 1, 0], np.float32), np.array([0, 1, 1, 0], np.float32))
    window = progressive.window()
    assert window.auc == 0.5
    assert window.loss is not None
    assert np.isfinite(window.loss)


def test_nothing_to_say_is_none_and_json() -> None:
    empty = Progressive().window()
    assert (empty.samples, empty.auc, empty.loss, empty.copc) == (0, None, None, None)
    assert Holdout().result() == Evaluation(0, None, None, None, None)
    one_class = Holdout()
    one_class.add(np.ones(3, np.float32), np.full(3, 0.5, np.float32))
    assert '"auc": null' in json.dumps(one_class.result().as_dict(), allow_nan=False)


def test_holdout_joins_batches_and_knows_the_bayes_auc() -> None:
    labels, p = clicks(4_000)
    noisy = np.clip(p + np.random.default_rng(1).normal(0, 0.1, len(p)), 0, 1).astype(np.float32)
    holdout = Holdout()
    for part in np.array_split(np.arange(len(labels)), 17):
        holdout.add(labels[part], noisy[part], p[part])
    result = holdout.result()
    assert result.samples == len(labels)
    assert result.auc == pytest.approx(exact_auc(labels, noisy))
    assert result.bayes_auc == pytest.approx(exact_auc(labels, p))
    assert result.logloss == pytest.approx(log_losses(labels, noisy).mean())
    assert result.auc is not None
    assert result.bayes_auc is not None
    assert result.bayes_auc > result.auc
