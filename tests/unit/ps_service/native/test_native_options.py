"""What stands around an optimizer: schedule, clipping, decoupled decay, and 16-bit weights."""

from __future__ import annotations

import numpy as np
import pytest

from ps_service import _native
from tests.unit.ps_service.native import reference as ref

KEYS = ref.u64(range(100))
ONE = ref.u64([7])


def options(**fields):
    return _native.UpdateOptions(**fields)


def shard_of(partitions=4, **changes):
    return _native.SparseShard([ref.table(**changes)], partitions=partitions, seed=3)


def trained(shard, keys, grads, first_step=1):
    """Rows of `keys` after a push of each of `grads` (steps, len(keys), dim)."""
    counts = ref.u32(len(keys))
    shard.pull(counts, keys, insert=True)
    for number, grad in enumerate(grads, start=first_step):
        shard.push(counts, keys, np.ascontiguousarray(grad.ravel()), step=number)
    return shard


def normal(*shape, seed=0, scale=1.0):
    return np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32)


SCHEDULES = [
    (
        {"schedule": "exponential", "schedule_params": {"steps": 50, "rate": 0.9}},
        lambda i: 0.9 ** (i / 50),
    ),
    (
        {"schedule": "cosine", "schedule_params": {"steps": 200, "floor": 0.2}},
        lambda i: 0.2 + 0.8 * 0.5 * (1 + np.cos(np.pi * min(i / 200, 1))),
    ),
    (
        {"schedule": "piecewise", "schedule_params": {"100": 0.5, "250": 0.0}},
        lambda i: 1.0 if i < 100 else 0.5 if i < 250 else 0.0,
    ),
    ({"schedule_params": {"warmup": 64}}, lambda i: min((i + 1) / 64, 1)),
]


@pytest.mark.parametrize(("chosen", "factor"), SCHEDULES)
@pytest.mark.parametrize("optimizer", sorted(_native.OPTIMIZERS))
def test_every_optimizer_follows_every_schedule(optimizer, chosen, factor):
    params = {**_native.OPTIMIZERS[optimizer], "lr": 0.01}
    grads = normal(300, 1, 4, scale=0.01)
    shard = shard_of(optimizer=optimizer, optimizer_params=params, options=options(**chosen))
    shard.pull(ref.u32(1), ONE, insert=True)
    state = ref.initial_state(optimizer, params, shard.export_rows(0)[1][0])
    trained(shard, ONE, grads)
    for i, grad in enumerate(grads):
        ref.step(optimizer, params, state, grad[0], factor(i))
    np.testing.assert_allclose(shard.export_rows(0)[1][0], state["w"], rtol=1e-6, atol=1e-7)


def test_schedules_are_those_of_keras():
    schedules = pytest.importorskip("keras").optimizers.schedules
    pairs = [
        (
            options(schedule="exponential", schedule_params={"steps": 30, "rate": 0.7}),
            schedules.ExponentialDecay(1.0, 30, 0.7),
        ),
        (
            options(
                schedule="exponential", schedule_params={"steps": 30, "rate": 0.7, "staircase": 1}
            ),
            schedules.ExponentialDecay(1.0, 30, 0.7, staircase=True),
        ),
        (
            options(schedule="cosine", schedule_params={"steps": 80, "floor": 0.1}),
            schedules.CosineDecay(1.0, 80, alpha=0.1),
        ),
        # Keras changes after the boundary, we at it.
        (
            options(schedule="piecewise", schedule_params={"21": 0.5, "61": 0.1}),
            schedules.PiecewiseConstantDecay([20, 60], [1.0, 0.5, 0.1]),
        ),
    ]
    for ours, theirs in pairs:
        for i in range(100):
            assert ours.factor(i + 1) == pytest.approx(float(theirs(i)), rel=1e-5), ours.schedule


def test_the_schedule_goes_by_the_step_of_the_push_alone():
    """Not by how often a row, a shard or a table was pushed."""
    chosen = options(schedule="exponential", schedule_params={"steps": 3, "rate": 0.5})
    fields = {"optimizer": "sgd", "optimizer_params": {"lr": 1.0}, "options": chosen}
    once, often = shard_of(**fields), shard_of(partitions=64, **fields)
    grads = normal(1, 1, 4)
    trained(once, ONE, grads, first_step=40)
    others = KEYS[KEYS != 7].copy()
    trained(often, others, normal(39, len(others), 4, seed=1))
    trained(often, ONE, grads, first_step=40)
    assert once.pull(ref.u32(1), ONE, insert=False) == often.pull(ref.u32(1), ONE, insert=False)


def test_gradients_are_clipped_by_value_then_by_norm():
    fields = {"optimizer": "sgd", "optimizer_params": {"lr": 1.0}, "initializer": "zeros"}
    chosen = options(clip_value=2.0, clip_norm=2.5)
    shard = shard_of(initializer_params={}, options=chosen, **fields)
    grads = np.array([[3, -4, 0, 0], [2, 1, 0, 0], [1, 1, 1, 1]], np.float32)
    trained(shard, ref.u64([1, 2, 3]), grads[None])
    scale = 2.5 / np.sqrt(8)
    wanted = -np.array([[2 * scale, -2 * scale, 0, 0], [2, 1, 0, 0], [1, 1, 1, 1]])
    np.testing.assert_allclose(shard.export_rows(0)[1], wanted, rtol=1e-6)


def test_what_is_clipped_is_the_sum_over_a_key():
    fields = {"optimizer": "sgd", "optimizer_params": {"lr": 1.0}, "initializer": "zeros"}
    shard = shard_of(dim=1, initializer_params={}, options=options(clip_norm=1.5), **fields)
    trained(shard, ref.u64([5, 5, 5]), np.ones((1, 3, 1), np.float32))
    assert shard.export_rows(0)[1].tolist() == [[-1.5]]


def test_a_gradient_that_is_not_finite_shows():
    shard = shard_of(options=options(clip_norm=1.0))
    bad = np.array([1, np.inf, np.nan, 0], np.float32)
    trained(shard, ONE, bad[None, None])
    assert not np.isfinite(shard.export_rows(0)[1]).all()


TAKES_DECAY = sorted(_native.OPTIMIZERS.keys() - {"adamw", "ftrl", "group_ftrl"})


@pytest.mark.parametrize("optimizer", TAKES_DECAY)
def test_decay_is_decoupled_from_the_gradient(optimizer):
    params = {**_native.OPTIMIZERS[optimizer], "lr": 0.01}
    grads = normal(200, 1, 4, scale=0.01)
    chosen = options(weight_decay=0.1, schedule_params={"warmup": 50})
    shard = shard_of(optimizer=optimizer, optimizer_params=params, options=chosen)
    shard.pull(ref.u32(1), ONE, insert=True)
    state = ref.initial_state(optimizer, params, shard.export_rows(0)[1][0])
    trained(shard, ONE, grads)
    for i, grad in enumerate(grads):
        rate = min((i + 1) / 50, 1)
        state["w"] = state["w"] * (1 - params["lr"] * rate * 0.1)
        ref.step(optimizer, params, state, grad[0], rate)
    np.testing.assert_allclose(shard.export_rows(0)[1][0], state["w"], rtol=1e-6, atol=1e-7)


def test_decay_beside_adam_is_adamw():
    grads = normal(100, 100, 4)
    beside = shard_of(
        optimizer="adam", optimizer_params={"lr": 0.01}, options=options(weight_decay=0.2)
    )
    within = shard_of(optimizer="adamw", optimizer_params={"lr": 0.01, "weight_decay": 0.2})
    rows = [trained(s, KEYS, grads).export_rows(0) for s in (beside, within)]
    np.testing.assert_allclose(rows[0][1], rows[1][1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "fields", "message"),
    [
        ("adamw", {"weight_decay": 0.1}, "'adamw' takes no weight_decay.*parameter of that name"),
        ("ftrl", {"weight_decay": 0.1}, "'ftrl' takes no weight_decay beside it; it has l1 and l2"),
        ("sgd", {"weight_decay": 2.0}, "'weight_decay' is 2, allowed is 0 to 1"),
        ("sgd", {"clip_value": -1.0}, "'clip_value' is -1"),
        ("sgd", {"clip_norm": float("nan")}, "'clip_norm' is nan"),
        ("sgd", {"schedule": "linear"}, "unknown schedule 'linear'; known are: constant"),
        ("sgd", {"schedule_params": {"steps": 3}}, "'constant' has no parameter 'steps'"),
        ("sgd", {"schedule": "piecewise"}, "'piecewise' needs a step with its factor"),
        ("sgd", {"schedule_params": {"warmup": 2.5}}, "'warmup' is 2.5, allowed is a whole number"),
    ],
)
def test_bad_options_are_refused_by_name(optimizer, fields, message):
    with pytest.raises(ValueError, match="table 't': .*" + message):
        ref.table(optimizer=optimizer, optimizer_params={}, options=options(**fields))


HALVES = {"fp16": 2.0**-11, "bf16": 2.0**-8}  # relative distance to the farther neighbour, at most


@pytest.mark.parametrize("weights", HALVES)
def test_16_bit_rows_take_half_the_weights_memory(weights):
    assert ref.table(dim=16, weights=weights).row_bytes == 32 + 64
    assert ref.table(dim=7, weights=weights).row_bytes == 16 + 28
    assert ref.table(dim=16).row_bytes == 64 + 64


@pytest.mark.parametrize("weights", HALVES)
def test_an_initial_16_bit_row_is_the_nearest_one_and_reads_alike_before_and_after(weights):
    exact, rounded = shard_of(), shard_of(weights=weights)
    counts = ref.u32(len(KEYS))
    wanted = ref.floats(exact.pull(counts, KEYS, insert=True))
    before = rounded.pull(counts, KEYS, insert=False)
    assert rounded.pull(counts, KEYS, insert=True) == before
    assert rounded.pull(counts, KEYS, insert=False) == before
    np.testing.assert_allclose(ref.floats(before), wanted, rtol=HALVES[weights], atol=2.0**-25)


@pytest.mark.parametrize("weights", HALVES)
def test_half_precision_is_numpy_s(weights):
    """What is stored is a float16, or a float32 with an empty lower half."""
    shard = trained(shard_of(weights=weights), KEYS, normal(10, 100, 4))
    stored = shard.export_rows(0)[1]
    if weights == "fp16":
        np.testing.assert_array_equal(stored.astype(np.float16).astype(np.float32), stored)
    else:
        assert not (stored.view(np.uint32) & 0xFFFF).any()


@pytest.mark.parametrize("weights", HALVES)
def test_rounding_depends_on_key_step_and_seed_alone(weights):
    grads = normal(20, 100, 4, scale=0.1)
    one = trained(shard_of(partitions=1, weights=weights), KEYS, grads)
    other = shard_of(partitions=64, weights=weights)
    order = np.random.default_rng(1).permutation(100)
    trained(other, KEYS[order].copy(), grads[:, order])
    for a, b in zip(one.export_rows(0), other.export_rows(0), strict=True):
        assert a.tobytes() == b.tobytes()
    later = trained(shard_of(weights=weights), KEYS, grads, first_step=2)
    assert later.export_rows(0)[1].tobytes() != one.export_rows(0)[1].tobytes()


@pytest.mark.parametrize("weights", HALVES)
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_small_updates_are_not_lost(weights, optimizer):
    """Each update is far below half a gap, so rounding to nearest would never move a weight."""
    fields = {
        "dim": 8,
        "optimizer": optimizer,
        "optimizer_params": {"lr": 2e-5 if weights == "fp16" else 2e-4},
        "initializer": "constant",
        "initializer_params": {"value": 1.0},
    }
    steps, keys = 300, ref.u64(range(50))
    grads = np.abs(normal(steps, 50, 8)) + np.float32(0.5)
    exact = trained(shard_of(**fields), keys, grads).export_rows(0)
    rounded = trained(shard_of(weights=weights, **fields), keys, grads).export_rows(0)
    np.testing.assert_array_equal(rounded[2], exact[2])  # the state is float32 and sees no weights
    error = rounded[1] - exact[1]
    gap = 2.0**-11 if weights == "fp16" else 2.0**-8  # below 1.0; at most this per rounding
    assert np.abs(exact[1] - 1).min() > gap
    # A rounding's error has a standard deviation of at most gap / 2, the sum of `steps` of them
    # gap / 2 * sqrt(steps); the mean over all weights is closer by the root of their number.
    assert np.abs(error).max() < 5 * gap / 2 * np.sqrt(steps)
    assert abs(error.mean()) < 5 * gap / 2 * np.sqrt(steps / error.size)


@pytest.mark.parametrize("weights", HALVES)
def test_a_snapshot_of_16_bit_rows_restores_every_bit(weights):
    fields = {"dim": 5, "optimizer": "adam", "optimizer_params": {}, "weights": weights}
    source, target = shard_of(**fields), shard_of(**fields)
    trained(source, KEYS, normal(3, 100, 5))
    blocks = [source.dump_partition(p) for p in range(4)]
    assert sum(target.load_partition(block) for block in blocks) == 100
    grads = normal(1, 100, 5, seed=2)
    for shard in (source, target):
        trained(shard, KEYS, grads, first_step=4)
    for a, b in zip(source.export_rows(0), target.export_rows(0), strict=True):
        assert a.tobytes() == b.tobytes()
    assert [source.dump_partition(p) for p in range(4)] == [
        target.dump_partition(p) for p in range(4)
    ]
    with pytest.raises(ValueError, match=f"table 0 weights is '{weights}', expected 'fp32'"):
        shard_of(**{**fields, "weights": "fp32"}).load_partition(blocks[0])


def test_unknown_weights_are_refused():
    with pytest.raises(ValueError, match="weights: unknown type 'fp8'; known are: fp32, fp16, bf"):
        ref.table(weights="fp8")
