"""The compiled step: gradients against finite differences and a tape, padding, one compilation,
micro-batches.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from services.kit.errors import InvalidInput
from trainer_service.micro_batches import configure_threads
from trainer_service.models import ModelContext, SparseInput, deepfm
from trainer_service.step import Diverged, StepResult, TrainStep, build_network

DENSE, FEATURES, DIM, BATCH = 3, 4, 5, 16
WIDTH = FEATURES * (DIM + 1)


def make(batch_size: int = BATCH, micro_batches: int = 1) -> TrainStep:
    sparse = tuple(SparseInput(f"C{i}", DIM) for i in range(FEATURES))
    model = deepfm.create(ModelContext(DENSE, sparse, (8, 4), seed=11))
    network = build_network(model.build, 11)
    return TrainStep(
        network, batch_size=batch_size, dense=DENSE, width=WIDTH, micro_batches=micro_batches
    )


def samples(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(n, DENSE)).astype(np.float32)
    rows = rng.normal(size=(n, WIDTH)).astype(np.float32)
    return dense, rows, (rng.random(n) < 0.4).astype(np.float32)


def run(step: TrainStep, data: tuple[np.ndarray, ...], parameters: np.ndarray):
    dense, rows, labels = data
    step.rows(len(labels))[:] = rows
    return step.run(dense, labels, parameters, step=1)


def row_grads(result: StepResult) -> np.ndarray:
    """All of them, (n, width)."""
    return np.concatenate(result.row_grads)


def two_layers(inputs: list[keras.KerasTensor], x: keras.KerasTensor) -> keras.Model:
    for seed, units in enumerate((8, 1)):
        kernel = keras.initializers.GlorotUniform(seed=seed)
        x = keras.layers.Dense(units, kernel_initializer=kernel)(x)
    return keras.Model(inputs, keras.ops.reshape(x, (-1,)))


def side_by_side() -> keras.Model:
    inputs = [keras.Input((DENSE,)), keras.Input((WIDTH,))]
    return two_layers(inputs, keras.layers.Concatenate()(inputs))


def joined() -> keras.Model:
    inputs = keras.Input((DENSE + WIDTH,))
    return two_layers([inputs], inputs)


@pytest.mark.parametrize("n", [BATCH, 5])
def test_a_network_with_joined_inputs_gives_the_bits_of_one_that_joins_them(n: int) -> None:
    plain = TrainStep(build_network(side_by_side, 1), batch_size=BATCH, dense=DENSE, width=WIDTH)
    step = TrainStep(
        build_network(joined, 1), batch_size=BATCH, dense=DENSE, width=DENSE + WIDTH, joined=True
    )
    parameters = plain.initial()
    np.testing.assert_array_equal(step.initial(), parameters)
    step.rows(BATCH)[:] = np.inf  # what an earlier batch left
    dense, rows, labels = samples(n, seed=n)
    want = run(plain, (dense, rows, labels), parameters)
    step.rows(n)[:, DENSE:] = rows  # as a plan gathers: the columns of its features only
    got = step.run(dense, labels, parameters, step=1)
    assert got.loss == want.loss
    np.testing.assert_array_equal(got.probabilities, want.probabilities)
    np.testing.assert_array_equal(row_grads(got)[:, DENSE:], row_grads(want))
    np.testing.assert_array_equal(got.dense_grads, want.dense_grads)
    plain.rows(n)[:] = rows
    step.rows(n)[:, DENSE:] = rows
    np.testing.assert_array_equal(step.predict(dense, parameters), plain.predict(dense, parameters))


def test_other_inputs_than_the_layout_has_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"inputs of \[27\] floats, expected \[3, 27\]"):
        TrainStep(build_network(joined, 1), batch_size=2, dense=DENSE, width=DENSE + WIDTH)
    with pytest.raises(InvalidInput, match=r"inputs of \[3, 24\] floats, expected \[24\]"):
        TrainStep(
            build_network(side_by_side, 1), batch_size=2, dense=DENSE, width=WIDTH, joined=True
        )


@pytest.fixture(scope="module")
def step() -> TrainStep:
    return make()


def test_gradients_equal_a_plain_tape(step: TrainStep) -> None:
    dense, rows, labels = data = samples(BATCH)
    parameters = step.initial()
    result = run(step, data, parameters)
    network = build_network(
        deepfm.create(
            ModelContext(
                DENSE, tuple(SparseInput(f"C{i}", DIM) for i in range(FEATURES)), (8, 4), 11
            )
        ).build,
        11,
    )
    watched = tf.constant(rows)
    with tf.GradientTape() as tape:
        tape.watch(watched)
        logits = network([tf.constant(dense), watched], training=True)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    of_rows, grads = tape.gradient(loss, (watched, [v.value for v in network.trainable_variables]))
    assert result.loss == pytest.approx(float(loss), rel=1e-6)
    np.testing.assert_allclose(row_grads(result), of_rows, rtol=1e-5, atol=1e-7)
    flat = np.concatenate([np.ravel(g) for g in grads])
    np.testing.assert_allclose(result.dense_grads, flat, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(result.probabilities, tf.sigmoid(logits), rtol=1e-6)


def test_gradients_equal_finite_differences(step: TrainStep) -> None:
    dense, rows, labels = data = samples(BATCH)
    parameters = step.initial()
    result = run(step, data, parameters)
    rng, h = np.random.default_rng(5), 1e-2
    for index in rng.choice(len(parameters), 12, replace=False):
        loss = []
        for sign in (1, -1):
            moved = parameters.copy()
            moved[index] += sign * h
            loss.append(run(step, data, moved).loss)
        assert (loss[0] - loss[1]) / (2 * h) == pytest.approx(result.dense_grads[index], abs=2e-3)
    for i, j in zip(rng.integers(0, BATCH, 12), rng.integers(0, WIDTH, 12), strict=True):
        loss = []
        for sign in (1, -1):
            moved = rows.copy()
            moved[i, j] += sign * h
            loss.append(run(step, (dense, moved, labels), parameters).loss)
        assert (loss[0] - loss[1]) / (2 * h) == pytest.approx(row_grads(result)[i, j], abs=2e-3)


@pytest.mark.parametrize("n", [1, 7, BATCH])
def test_padding_changes_nothing(n: int) -> None:
    padded, exact = make(BATCH), make(n)
    run(padded, samples(BATCH, seed=9), padded.initial())  # leaves stale rows in the buffers
    data, parameters = samples(n, seed=1), exact.initial()
    got, want = run(padded, data, parameters), run(exact, data, parameters)
    assert got.loss == pytest.approx(want.loss, rel=1e-6)
    assert row_grads(got).shape == (n, WIDTH)
    assert got.probabilities.shape == (n,)
    np.testing.assert_allclose(row_grads(got), row_grads(want), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(got.dense_grads, want.dense_grads, rtol=1e-5, atol=1e-8)


def test_stale_infinity_in_the_padding_is_harmless() -> None:
    step = make()
    step.rows(BATCH)[:] = np.inf
    data = samples(3)
    assert np.isfinite(run(step, data, step.initial()).dense_grads).all()


def test_compiled_once_for_all_batch_lengths() -> None:
    step = make()
    parameters = step.initial()
    for n in (BATCH, 1, 5, BATCH):
        data = samples(n, seed=n)
        run(step, data, parameters)
        step.rows(n)[:] = data[1]
        step.predict(data[0], parameters)
    assert step.traces == 2  # run and predict


def test_parameters_come_from_the_argument_only() -> None:
    step = make()
    data, first = samples(BATCH), step.initial()
    before = run(step, data, first)
    run(step, data, first * 3)
    after = run(step, data, first)
    assert after.loss == before.loss
    np.testing.assert_array_equal(step.initial(), first)
    np.testing.assert_array_equal(after.dense_grads, before.dense_grads)


def test_a_network_without_weights_of_its_own_runs_too() -> None:
    def summed() -> keras.Model:
        inputs = [keras.Input((DENSE,)), keras.Input((WIDTH,))]
        return keras.Model(inputs, keras.ops.sum(inputs[1], axis=1))

    step = TrainStep(build_network(summed, 1), batch_size=BATCH, dense=DENSE, width=WIDTH)
    dense, rows, labels = samples(BATCH)
    result = run(step, (dense, rows, labels), step.initial())
    probabilities = 1 / (1 + np.exp(-rows.sum(1)))
    np.testing.assert_allclose(result.probabilities, probabilities, rtol=1e-5)
    want = np.repeat((probabilities - labels)[:, None] / BATCH, WIDTH, 1)
    np.testing.assert_allclose(row_grads(result), want, rtol=1e-4, atol=1e-7)
    assert result.dense_grads.shape == step.initial().shape == (0,)


def test_predict_gives_the_probabilities_of_run(step: TrainStep) -> None:
    dense, rows, _ = data = samples(5)
    result = run(step, data, step.initial())
    step.rows(5)[:] = rows
    np.testing.assert_allclose(step.predict(dense, step.initial()), result.probabilities, rtol=1e-6)


def test_results_survive_the_next_step(step: TrainStep) -> None:
    result = run(step, samples(BATCH, seed=2), step.initial())
    kept = row_grads(result), result.dense_grads.copy(), result.probabilities.copy()
    run(step, samples(BATCH, seed=3), step.initial())
    np.testing.assert_array_equal(row_grads(result), kept[0])
    np.testing.assert_array_equal(result.dense_grads, kept[1])
    np.testing.assert_array_equal(result.probabilities, kept[2])


def test_diverged_loss_names_the_step(step: TrainStep) -> None:
    dense, rows, labels = samples(4)
    rows[0, 0] = np.nan
    step.rows(4)[:] = rows
    with pytest.raises(Diverged, match="step 41: loss is nan") as caught:
        step.run(dense, labels, step.initial(), step=41)
    assert not caught.value.permanent


def test_infinite_gradient_is_no_silent_success() -> None:
    def build() -> keras.Model:
        dense, rows = keras.Input((1,)), keras.Input((1,))
        # sqrt at 0: a finite loss whose gradient is infinite
        return keras.Model([dense, rows], keras.ops.reshape(keras.ops.sqrt(rows), (-1,)))

    step = TrainStep(build_network(build, 0), batch_size=2, dense=1, width=1)
    assert step.parameters == 0
    step.rows(2)[:] = 0
    with pytest.raises(Diverged, match="step 3: a gradient is not finite"):
        zeros = np.zeros((2, 1), np.float32)
        step.run(zeros, zeros[:, 0], step.initial(), step=3)


def test_untrained_weights_are_refused() -> None:
    def build() -> keras.Model:
        dense, rows = keras.Input((1,)), keras.Input((2,))
        out = keras.layers.Dense(1)(keras.layers.BatchNormalization(name="norm")(rows))
        return keras.Model([dense, rows], keras.ops.reshape(out, (-1,)))

    with pytest.raises(InvalidInput, match="norm/moving_mean, norm/moving_variance"):
        build_network(build, 0)


def test_unseeded_initialisers_are_equal_in_all_processes() -> None:
    def build() -> keras.Model:
        dense, rows = keras.Input((2,)), keras.Input((2,))
        out = keras.layers.Dense(1)(keras.layers.Concatenate()([dense, rows]))
        return keras.Model([dense, rows], keras.ops.reshape(out, (-1,)))

    first, second = (
        TrainStep(build_network(build, 2**62), batch_size=1, dense=2, width=2).initial()
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)


def test_results_keep_their_values_though_nothing_is_copied() -> None:
    """They look into TensorFlow's memory, and the buffers of the input are written again."""
    step, kept = make(), []
    for seed in range(6):
        parameters = step.initial() + np.float32(0.01 * seed)
        result = run(step, samples(BATCH, seed), parameters)
        arrays = (result.probabilities, *result.row_grads, result.dense_grads)
        assert not any(array.flags.owndata or array.flags.writeable for array in arrays)
        kept.append((arrays, [array.copy() for array in arrays]))
    for arrays, copies in kept:
        for array, copy in zip(arrays, copies, strict=True):
            np.testing.assert_array_equal(array, copy)
    assert len({copies[1].tobytes() for _, copies in kept}) == len(kept)


MANY = 80  # rows; 3 micro-batches of 32


@pytest.mark.parametrize("n", [1, 31, 32, 33, 64, MANY])
def test_micro_batches_give_the_step_of_the_whole_batch(n: int) -> None:
    whole, cut = make(MANY), make(MANY, micro_batches=3)
    run(cut, samples(MANY, seed=9), cut.initial())  # leaves stale rows in the buffers
    data, parameters = samples(n, seed=1), whole.initial()
    want, got = run(whole, data, parameters), run(cut, data, parameters)
    assert [len(piece) for piece in got.row_grads] == [min(32, n - at) for at in range(0, n, 32)]
    assert got.loss == pytest.approx(want.loss, rel=1e-6)
    np.testing.assert_allclose(row_grads(got), row_grads(want), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(got.dense_grads, want.dense_grads, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(got.probabilities, want.probabilities, rtol=1e-6)
    for step in (whole, cut):
        step.rows(n)[:] = data[1]
    np.testing.assert_allclose(
        cut.predict(data[0], parameters), whole.predict(data[0], parameters), rtol=1e-6
    )


def test_micro_batches_give_the_same_bits_each_time_and_are_compiled_once() -> None:
    step = make(MANY, micro_batches=3)
    data, parameters = samples(MANY), step.initial()
    first = run(step, data, parameters)
    for _ in range(20):
        again = run(step, data, parameters)
        assert again.loss == first.loss
        np.testing.assert_array_equal(again.dense_grads, first.dense_grads)
        np.testing.assert_array_equal(row_grads(again), row_grads(first))
    assert step.traces == 1


@pytest.mark.parametrize("sample", [0, 40, MANY - 1])
def test_divergence_in_any_micro_batch_is_noticed_and_the_next_step_runs(sample: int) -> None:
    step = make(MANY, micro_batches=3)
    dense, rows, labels = samples(MANY)
    broken = rows.copy()
    broken[sample, 0] = np.nan
    with pytest.raises(Diverged, match="step 1: loss is nan"):
        run(step, (dense, broken, labels), step.initial())
    assert np.isfinite(run(step, (dense, rows, labels), step.initial()).loss)


def test_a_step_is_cut_into_micro_batches_that_are_worth_a_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: dict[str, int] = {}
    for kind in ("intra", "inter"):
        name = f"set_{kind}_op_parallelism_threads"
        monkeypatch.setattr(
            tf.config.threading, name, lambda n, kind=kind: told.__setitem__(kind, n)
        )
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    for trainers, batch_size, want, threads in (
        (1, 8192, 8, {"intra": 1, "inter": 8}),
        (1, 2048, 4, {"intra": 2, "inter": 8}),
        (1, 256, 1, {"intra": 8, "inter": 8}),
        (4, 8192, 2, {"intra": 1, "inter": 2}),
        (9, 8192, 1, {"intra": 1, "inter": 1}),
    ):
        assert configure_threads(trainers, batch_size) == want
        assert told == threads
