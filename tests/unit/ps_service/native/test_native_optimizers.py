"""Each optimizer follows its formula, in NumPy float64 and in Keras, sparse and dense."""

from __future__ import annotations

import numpy as np
import pytest

from ps_service import _native
from tests.unit.ps_service.native import reference as ref

CASES = [
    ("sgd", {"lr": 0.05}),
    ("adagrad", {"lr": 0.05, "initial_accumulator": 0.1}),
    ("adagrad", {"lr": 0.01, "initial_accumulator": 0.0, "epsilon": 1e-6}),
    ("adam", {"lr": 0.001}),
    ("adam", {"lr": 0.003, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-8}),
    ("ftrl", {"lr": 0.05, "l1": 0.001, "l2": 0.01, "beta": 0.5}),
    ("ftrl", {"lr": 0.05, "lr_power": -0.6}),
]
IDS = [f"{name}-{i}" for i, (name, _) in enumerate(CASES)]
STEPS = 1000


def full_params(optimizer: str, params: dict[str, float]) -> dict[str, float]:
    return {**_native.OPTIMIZERS[optimizer], **params}


@pytest.mark.parametrize(("optimizer", "params"), CASES, ids=IDS)
def test_a_row_follows_the_float64_reference_over_1000_steps(optimizer, params):
    rng = np.random.default_rng(1)
    dim = 17  # no multiple of a SIMD width
    config = ref.table(dim=dim, optimizer=optimizer, optimizer_params=params)
    shard = _native.SparseShard([config], partitions=1, seed=3)
    counts, keys = ref.u32(1), ref.u64([42])
    start = ref.floats(shard.pull(counts, keys, insert=True))
    state = ref.initial_state(optimizer, full_params(optimizer, params), start)
    for _ in range(STEPS):
        grad = rng.normal(0, 0.01, dim).astype(np.float32)
        shard.push(counts, keys, grad)
        ref.step(optimizer, full_params(optimizer, params), state, grad)
    actual = ref.floats(shard.pull(counts, keys, insert=False))
    np.testing.assert_allclose(actual, state["w"], rtol=1e-6, atol=1e-7)
    assert np.abs(actual - start).max() > 1e-3  # it did move


@pytest.mark.parametrize(("optimizer", "params"), CASES, ids=IDS)
def test_every_single_step_is_within_1e_6_of_the_formula(optimizer, params):
    """Unlike a trajectory, this leaves no room for errors to cancel, and uses large gradients."""
    rng = np.random.default_rng(2)
    dim = 8
    resolved = full_params(optimizer, params)
    block = _native.DenseBlock(
        rng.normal(0, 0.1, dim).astype(np.float32), optimizer=optimizer, optimizer_params=params
    )
    names = {"sgd": [], "adagrad": ["a"], "adam": ["m", "v"], "ftrl": ["n", "z"]}[optimizer]
    for number in range(300):
        before = row_of(block, dim, names, number)
        grad = rng.normal(0, 1.0, dim).astype(np.float32)
        block.apply(grad)
        ref.step(optimizer, resolved, before, grad)
        after = row_of(block, dim, names, number + 1)
        for name in ["w", *names]:
            np.testing.assert_allclose(after[name], before[name], rtol=1e-6, atol=1e-7)


def row_of(block, dim, names, number):
    """The block's weights and state as float64, read from its dump."""
    row_floats = dim * (1 + len(names)) + (1 if "m" in names else 0)
    row = np.frombuffer(block.dump()[:-4], np.uint8)[-4 * row_floats :].view(np.float32)
    parts = {name: row[dim * i : dim * (i + 1)] for i, name in enumerate(["w", *names])}
    state = {name: part.astype(np.float64) for name, part in parts.items()}
    return {**state, "t": np.float64(number)}


@pytest.mark.parametrize(("optimizer", "params"), CASES, ids=IDS)
def test_a_dense_block_and_a_sparse_row_move_alike(optimizer, params):
    rng = np.random.default_rng(4)
    config = ref.table(dim=33, optimizer=optimizer, optimizer_params=params)
    shard = _native.SparseShard([config], partitions=4, seed=3)
    counts, keys = ref.u32(1), ref.u64([2**64 - 1])
    start = ref.floats(shard.pull(counts, keys, insert=True))
    block = _native.DenseBlock(start, optimizer=optimizer, optimizer_params=params)
    for _ in range(20):
        grad = rng.normal(size=33).astype(np.float32)
        shard.push(counts, keys, grad)
        block.apply(grad)
    assert shard.pull(counts, keys, insert=False) == block.values().tobytes()
    assert block.step == 20


def test_adam_is_lazy_and_keeps_one_step_count_per_row():
    config = ref.table(dim=2, optimizer="adam", optimizer_params={})
    shard = _native.SparseShard([config], partitions=8, seed=0)
    keys = ref.u64([5, 6])
    shard.pull(ref.u32(2), keys, insert=True)
    shard.push(ref.u32(2), keys, np.ones(4, np.float32))
    for _ in range(5000):  # past the step sizes that are kept in a table
        shard.push(ref.u32(1), keys[:1], np.full(2, 0.1, np.float32))
    _, weights, state = shard.export_rows(0)
    assert state[:, -1].tolist() == [5001.0, 1.0]
    single = _native.SparseShard([config], partitions=8, seed=0)
    single.pull(ref.u32(1), keys[1:], insert=True)
    single.push(ref.u32(1), keys[1:], np.ones(2, np.float32))
    np.testing.assert_array_equal(weights[1], single.export_rows(0)[1][0])


@pytest.mark.parametrize("gradient", [0.0, 1.0])
def test_ftrl_without_an_accumulator_stays_finite(gradient):
    config = ref.table(
        dim=3, optimizer="ftrl", optimizer_params={"initial_accumulator": 0.0, "l1": 0.1}
    )
    shard = _native.SparseShard([config], partitions=1, seed=0)
    shard.pull(ref.u32(1), ref.u64([0]), insert=True)
    shard.push(ref.u32(1), ref.u64([0]), np.full(3, gradient, np.float32))
    assert np.isfinite(ref.floats(shard.pull(ref.u32(1), ref.u64([0]), insert=False))).all()


def keras_optimizer(name, p):
    import keras

    if name == "sgd":
        return keras.optimizers.SGD(p["lr"])
    if name == "adagrad":
        return keras.optimizers.Adagrad(p["lr"], p["initial_accumulator"], p["epsilon"])
    if name == "adam":
        return keras.optimizers.Adam(p["lr"], p["beta1"], p["beta2"], p["epsilon"])
    return keras.optimizers.Ftrl(
        p["lr"], p["lr_power"], p["initial_accumulator"], p["l1"], p["l2"], beta=p["beta"]
    )


@pytest.mark.parametrize(("optimizer", "params"), CASES, ids=IDS)
def test_it_is_what_keras_computes(optimizer, params):
    """Keras works in float32 throughout and rounds 1 - beta2**t, hence the wider tolerance."""
    keras = pytest.importorskip("keras")
    rng = np.random.default_rng(5)
    start = rng.normal(0, 0.1, 9).astype(np.float32)
    variable = keras.Variable(start)
    theirs = keras_optimizer(optimizer, full_params(optimizer, params))
    ours = _native.DenseBlock(start, optimizer=optimizer, optimizer_params=params)
    for _ in range(30):
        grad = rng.normal(0, 0.5, 9).astype(np.float32)
        theirs.apply([keras.ops.convert_to_tensor(grad)], [variable])
        ours.apply(grad)
    np.testing.assert_allclose(ours.values(), np.asarray(variable), rtol=2e-5, atol=2e-6)
