"""Networks against NumPy, their determinism, and the contract that the layout checks."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from services.kit import plugins
from services.kit.errors import InvalidInput
from trainer_service.models import Model, ModelContext, SparseInput, deepfm, dnn, lr, wide_deep

RNG = np.random.default_rng(3)


def context(dense: int = 3, dims: tuple[int, ...] = (4, 4), seed: int = 7) -> ModelContext:
    sparse = tuple(SparseInput(f"C{i}", dim) for i, dim in enumerate(dims))
    return ModelContext(dense, sparse, (6, 5), seed)


def run(model: Model, dense: np.ndarray, embeddings: np.ndarray) -> tuple[np.ndarray, dict]:
    """Logits, and the network's weights by short path."""
    network = model.build()
    weights = {w.path: np.asarray(w.value, np.float64) for w in network.trainable_variables}
    return np.asarray(network([dense, embeddings]), np.float64), weights


def mlp(x: np.ndarray, weights: dict) -> np.ndarray:
    for layer in ("deep_0", "deep_1"):
        x = np.maximum(x @ weights[f"{layer}/kernel"] + weights[f"{layer}/bias"], 0)
    return (x @ weights["deep_out/kernel"] + weights["deep_out/bias"])[:, 0]


def batch(model: Model, dense: int, rows: int = 9) -> tuple[np.ndarray, np.ndarray]:
    return (
        RNG.normal(size=(rows, dense)).astype(np.float32),
        RNG.normal(size=(rows, sum(model.widths))).astype(np.float32),
    )


def test_lr_is_the_sum_of_weights() -> None:
    model = lr.create(context())
    assert model.widths == (1, 1)
    dense, rows = batch(model, 3)
    logits, w = run(model, dense, rows)
    want = (dense @ w["first_order/kernel"] + w["first_order/bias"])[:, 0] + rows.sum(1)
    np.testing.assert_allclose(logits, want, rtol=1e-5, atol=1e-6)


def test_lr_without_dense_features_keeps_a_bias() -> None:
    model = lr.create(context(dense=0))
    _, weights = run(model, *batch(model, 0))
    assert weights["first_order/bias"].shape == (1,)


@pytest.mark.parametrize("dims", [(4, 4, 4), (2, 5, 3)], ids=["equal dims", "mixed dims"])
def test_wide_deep_is_linear_plus_mlp(dims: tuple[int, ...]) -> None:
    model = wide_deep.create(context(dims=dims))
    assert model.widths == tuple(d + 1 for d in dims)
    dense, rows = batch(model, 3)
    logits, w = run(model, dense, rows)
    starts = np.cumsum([0, *model.widths])
    first = rows[:, starts[:-1]].sum(1)
    vectors = np.delete(rows, starts[:-1], axis=1)
    want = (dense @ w["first_order/kernel"])[:, 0] + first + mlp(np.hstack([dense, vectors]), w)
    np.testing.assert_allclose(logits, want, rtol=1e-4, atol=1e-5)


def test_deepfm_adds_all_pairwise_dot_products() -> None:
    model = deepfm.create(context(dims=(4, 4, 4)))
    dense, rows = batch(model, 3)
    logits, w = run(model, dense, rows)
    shaped = rows.reshape(-1, 3, 5).astype(np.float64)
    first, vectors = shaped[:, :, 0].sum(1), shaped[:, :, 1:]
    pairs = sum((vectors[:, i] * vectors[:, j]).sum(1) for i in range(3) for j in range(i + 1, 3))
    deep = mlp(np.hstack([dense, vectors.reshape(len(rows), -1)]), w)
    want = (dense @ w["first_order/kernel"])[:, 0] + first + pairs + deep
    np.testing.assert_allclose(logits, want, rtol=1e-4, atol=1e-5)


def test_deepfm_names_features_of_unequal_dims() -> None:
    with pytest.raises(InvalidInput, match=r"'C0' has dim 4, 'C2' has 8"):
        deepfm.create(context(dims=(4, 4, 8)))


@pytest.mark.parametrize("dense", [3, 0])
def test_dnn_is_an_mlp_over_dense_features_and_rows_side_by_side(dense: int) -> None:
    model = dnn.create(context(dense, dims=(2, 5, 3)))
    assert (model.widths, model.joined) == ((2, 5, 3), True)
    x = np.hstack(batch(model, dense))
    network = model.build()
    weights = {w.path: np.asarray(w.value, np.float64) for w in network.trainable_variables}
    np.testing.assert_allclose(network(x), mlp(x, weights), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("module", [lr, wide_deep, deepfm, dnn])
@pytest.mark.parametrize("seed", [0, 7, 2**63 - 1])
def test_weights_are_a_function_of_the_seed(module, seed: int) -> None:
    def weights(chosen: int) -> np.ndarray:
        network = module.create(context(seed=chosen)).build()
        return np.concatenate([np.ravel(w.value) for w in network.trainable_variables])

    np.testing.assert_array_equal(weights(seed), weights(seed))
    assert not np.array_equal(weights(seed), weights(1))


def test_known_models_are_listed_without_tensorflow() -> None:
    assert plugins.names("trainer_service.models") == ["deepfm", "dnn", "lr", "wide_deep"]
    code = (
        "import sys; from services.kit import plugins; plugins.names('trainer_service.models'); "
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
