"""Each optimizer follows its formula, in NumPy float64 and in Keras, sparse and dense."""

from __future__ import annotations

import numpy as np
import pytest

from ps_service import _native
from tests.unit.ps_service.native import reference as ref

CASES = [
    ("sgd", {"lr": 0.05}),
    ("momentum", {"lr": 0.01}),
    ("momentum", {"lr": 0.01, "momentum": 0.8, "nesterov": 1}),
    ("rowwise_adagrad", {"lr": 0.05, "initial_accumulator": 0.1}),
    ("rowwise_adagrad", {"lr": 0.01, "initial_accumulator": 0.0, "epsilon": 1e-6}),
    ("adagrad", {"lr": 0.05, "initial_accumulator": 0.1}),
    ("adagrad", {"lr": 0.01, "initial_accumulator": 0.0, "epsilon": 1e-6}),
    ("adam", {"lr": 0.001}),
    ("adam", {"lr": 0.003, "beta1": 0.8, "beta2": 0.99, "epsilon": 1e-8}),
    ("adamw", {"lr": 0.001, "weight_decay": 0.1}),
    ("amsgrad", {"lr": 0.001}),
    ("amsgrad", {"lr": 0.003, "beta1": 0.8, "beta2": 0.9}),
    ("rmsprop", {"lr": 0.001}),
    ("rmsprop", {"lr": 0.001, "momentum": 0.9, "rho": 0.95}),
    ("rmsprop", {"lr": 0.001, "centered": 1}),
    ("rmsprop", {"lr": 0.0005, "centered": 1, "momentum": 0.5}),
    ("ftrl", {"lr": 0.05, "l1": 0.001, "l2": 0.01, "beta": 0.5}),
    ("ftrl", {"lr": 0.05, "lr_power": -0.6}),
    ("group_ftrl", {"lr": 0.05, "l1": 0.001, "l2": 0.01, "beta": 0.5}),
    ("group_ftrl", {"lr": 0.05, "l1": 0.001, "l21": 0.01}),
]
ROW_WISE = ("rowwise_adagrad", "group_ftrl")
ELEMENT_WISE = [case for case in CASES if case[0] not in ROW_WISE]
IN_KERAS = ELEMENT_WISE  # Keras has all of these, and none of the others


def ids(cases):
    return [f"{name}-{i}" for i, (name, _) in enumerate(cases)]


STEPS = 1000


def full_params(optimizer: str, params: dict[str, float]) -> dict[str, float]:
    return {**_native.OPTIMIZERS[optimizer], **params}


@pytest.mark.parametrize(("optimizer", "params"), CASES, ids=ids(CASES))
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


@pytest.mark.parametrize(("optimizer", "params"), CASES, ids=ids(CASES))
def test_every_single_step_is_within_1e_6_of_the_formula(optimizer, params):
    """Unlike a trajectory, this leaves no room for errors to cancel, and uses large gradients."""
    rng = np.random.default_rng(2)
    dim = 8
    resolved = full_params(optimizer, params)
    config = ref.table(dim=dim, optimizer=optimizer, optimizer_params=params)
    shard = _native.SparseShard([config], partitions=1, seed=3)
    counts, keys = ref.u32(1), ref.u64([42])
    shard.pull(counts, keys, insert=True)
    names = ref.vectors(optimizer, resolved)
    for number in range(300):
        before = row_of(shard, optimizer, names, number)
        grad = rng.normal(0, 1.0, dim).astype(np.float32)
        shard.push(counts, keys, grad)
        ref.step(optimizer, resolved, before, grad)
        after = row_of(shard, optimizer, names, number + 1)
        for name in after:
            np.testing.assert_allclose(after[name], before[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("optimizer", "params"),
    [case for case in CASES if case[0] in ROW_WISE],
    ids=ids([case for case in CASES if case[0] in ROW_WISE]),
)
@pytest.mark.parametrize("dim", [1, 64, 65, 200])
def test_what_a_row_shares_is_of_all_its_columns(optimizer, params, dim):
    """Sums of squares come in blocks and lanes; none of the columns may be left out."""
    rng = np.random.default_rng(8)
    config = ref.table(dim=dim, optimizer=optimizer, optimizer_params=params)
    shard = _native.SparseShard([config], partitions=1, seed=3)
    counts, keys = ref.u32(1), ref.u64([42])
    start = ref.floats(shard.pull(counts, keys, insert=True))
    resolved = full_params(optimizer, params)
    state = ref.initial_state(optimizer, resolved, start)
    for _ in range(30):
        grad = (rng.normal(0, 0.1, dim) * np.linspace(0.1, 3, dim)).astype(np.float32)
        shard.push(counts, keys, grad)
        ref.step(optimizer, resolved, state, grad)
    actual = ref.floats(shard.pull(counts, keys, insert=False))
    np.testing.assert_allclose(actual, state["w"], rtol=1e-6, atol=1e-7)


def row_of(shard, optimizer, names, number):
    """The only row's weights and state as float64."""
    _, weights, state = shard.export_rows(0)
    dim = weights.shape[1]
    row = np.concatenate([weights[0], state[0]]).astype(np.float64)
    parts = {name: row[dim * i : dim * (i + 1)] for i, name in enumerate(names)}
    last = ref.scalar(optimizer)
    assert len(row) == dim * len(names) + (last is not None)
    return {"t": np.float64(number), **parts, **({last: row[-1]} if last else {})}


@pytest.mark.parametrize(("optimizer", "params"), ELEMENT_WISE, ids=ids(ELEMENT_WISE))
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
    from keras import optimizers

    lr = p["lr"]
    if name == "sgd":
        return optimizers.SGD(lr)
    if name == "momentum":
        return optimizers.SGD(lr, momentum=p["momentum"], nesterov=bool(p["nesterov"]))
    if name == "adagrad":
        return optimizers.Adagrad(lr, p["initial_accumulator"], p["epsilon"])
    if name == "rmsprop":
        return optimizers.RMSprop(
            lr, p["rho"], p["momentum"], p["epsilon"], centered=bool(p["centered"])
        )
    if name == "ftrl":
        return optimizers.Ftrl(
            lr, p["lr_power"], p["initial_accumulator"], p["l1"], p["l2"], beta=p["beta"]
        )
    kinds = {"adam": optimizers.Adam, "adamw": optimizers.AdamW, "amsgrad": optimizers.Adam}
    extra = {"adamw": {"weight_decay": p.get("weight_decay")}, "amsgrad": {"amsgrad": True}}
    return kinds[name](
        lr, beta_1=p["beta1"], beta_2=p["beta2"], epsilon=p["epsilon"], **extra.get(name, {})
    )


@pytest.mark.parametrize(("optimizer", "params"), IN_KERAS, ids=ids(IN_KERAS))
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


@pytest.mark.parametrize("optimizer", ROW_WISE)
def test_dense_parameters_have_no_rows(optimizer):
    with pytest.raises(ValueError, match=f"'{optimizer}' treats a row as one"):
        _native.DenseBlock(np.zeros(2, np.float32), optimizer=optimizer, optimizer_params={})


def test_group_ftrl_without_the_group_is_ftrl():
    rng = np.random.default_rng(6)
    shared = {"lr": 0.05, "l1": 0.01, "l2": 0.02, "beta": 0.3}
    rows = []
    for optimizer in ("ftrl", "group_ftrl"):
        config = ref.table(dim=7, optimizer=optimizer, optimizer_params=shared)
        shard = _native.SparseShard([config], partitions=1, seed=3)
        shard.pull(ref.u32(1), ref.u64([9]), insert=True)
        for _ in range(50):
            grad = np.random.default_rng(rng.integers(5)).normal(size=7).astype(np.float32)
            shard.push(ref.u32(1), ref.u64([9]), grad)
        rng = np.random.default_rng(6)
        rows.append(shard.export_rows(0)[1])
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-6)


def test_group_ftrl_empties_whole_rows_that_matter_little():
    config = ref.table(dim=8, optimizer="group_ftrl", optimizer_params={"lr": 0.1, "l21": 0.5})
    shard = _native.SparseShard([config], partitions=1, seed=3)
    keys = ref.u64([1, 2])
    shard.pull(ref.u32(2), keys, insert=True)
    rng = np.random.default_rng(7)
    noise, signal = rng.normal(0, 0.01, (20, 8)), rng.normal(0.5, 0.01, (20, 8))
    for small, large in zip(noise, signal, strict=True):
        shard.push(ref.u32(2), keys, np.concatenate([small, large]).astype(np.float32))
    weights = shard.export_rows(0)[1]
    assert not weights[0].any()
    assert weights[1].all()


@pytest.mark.parametrize(
    ("optimizer", "params", "message"),
    [
        ("momentum", {"nesterov": 0.5}, "'nesterov' is 0.5, allowed is 0 or 1"),
        ("momentum", {"momentum": 1}, "'momentum' is 1, allowed is 0 to"),
        ("rmsprop", {"centered": 2}, "'centered' is 2, allowed is 0 to 1"),
        ("group_ftrl", {"l21": -1}, "'l21' is -1"),
    ],
)
def test_bad_parameters_are_refused_by_name(optimizer, params, message):
    with pytest.raises(ValueError, match=message):
        ref.table(optimizer=optimizer, optimizer_params=params)
