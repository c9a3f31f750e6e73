"""`TrainStep.take` by distinct rows against the same step by gathered rows, and against float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest

from ps_service.client.plan import KeyPlan, KeyPlanner
from ps_service.sharding import ShardMap
from ps_service.tables import table_spec
from services.api.optimizers import OptimizerSpec
from services.api.spec import parse
from services.kit.errors import InvalidInput
from trainer_service.models import ModelContext, SparseInput, deepfm, dnn
from trainer_service.step import Diverged, StepResult, TrainStep, build_network

DENSE, DIMS, BATCH, HIDDEN, SEED = 3, (16, 16, 20), 96, (64, 8), 11
WIDTH = DENSE + sum(DIMS)
KEYS = 6  # of each feature: a batch shares them
TOLERANCE = 1e-5  # of the greatest number of an array: sums of float32 in another order


def network() -> keras.Model:
    sparse = tuple(SparseInput(f"C{i}", dim) for i, dim in enumerate(DIMS))
    return build_network(dnn.create(ModelContext(DENSE, sparse, HIDDEN, SEED)).build, SEED)


def make(project: bool = True, **changes: Any) -> TrainStep:
    given = {"batch_size": BATCH, "dense": DENSE, "width": WIDTH, "joined": True} | changes
    return TrainStep(given.pop("network", None) or network(), project=project, **given)


SPEC = """
name: projected
model: {name: dnn}
data: {source: "synthetic://criteo?rows=10"}
features: {dense: I1, sparse: {C1: {}}}
training: """


@dataclass
class Data:
    """A batch, its plan and its rows."""

    plan: KeyPlan
    values: np.ndarray
    dense: np.ndarray
    labels: np.ndarray

    def take(self, step: TrainStep, parameters: np.ndarray | None = None) -> StepResult:
        parameters = step.initial() if parameters is None else parameters
        return step.take(self.plan, self.values, self.dense, self.labels, parameters, step=41)


def data(n: int, seed: int = 0, *, most: int = 1, keys: int = KEYS) -> Data:
    """n samples with up to `most` keys a feature, of `keys` ones; 1: with exactly one."""
    rng = np.random.default_rng([seed, n])
    planner = KeyPlanner(
        [table_spec(f"C{i}", dim, OptimizerSpec(name="sgd"), None) for i, dim in enumerate(DIMS)],
        range(len(DIMS)),
        np.cumsum([DENSE, *DIMS])[:-1].tolist(),
        ["sum", "mean", "sqrtn"],
        WIDTH,
        ShardMap.even(partitions=16, shards=2),
    )
    bags = len(DIMS) * n
    lengths = np.ones(bags, int) if most == 1 else rng.integers(0, most + 1, bags)
    offsets = np.cumsum([0, *lengths]).astype(np.int32)
    plan = planner.plan(rng.integers(0, keys, lengths.sum()).astype(np.uint64), offsets, n)
    return Data(
        plan,
        rng.normal(size=plan.value_floats).astype(np.float32),
        rng.normal(size=(n, DENSE)).astype(np.float32),
        (rng.random(n) < 0.4).astype(np.float32),
    )


def row_grads(batch: Data, result: StepResult) -> np.ndarray:
    if result.projections:
        return batch.plan.add_up(*result.projections)
    return batch.plan.scatter(*result.row_grads)


def assert_close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE * np.abs(want).max())


def assert_same(batch: Data, got: StepResult, want: StepResult) -> None:
    assert got.projections
    assert not got.row_grads
    assert want.row_grads
    assert not want.projections
    assert got.loss == pytest.approx(want.loss, rel=1e-5)
    assert got.probabilities.shape == batch.labels.shape
    np.testing.assert_allclose(got.probabilities, want.probabilities, rtol=TOLERANCE)
    assert_close(row_grads(batch, got), row_grads(batch, want))
    assert_close(got.dense_grads, want.dense_grads)


@pytest.fixture(scope="module", params=[1, 2, 3], ids=lambda n: f"micro-batches={n}")
def steps(request: pytest.FixtureRequest) -> tuple[TrainStep, TrainStep]:
    """By distinct rows, and by gathered ones."""
    return make(micro_batches=request.param), make(False, micro_batches=request.param)


@pytest.mark.parametrize("most", [1, 4], ids=["one key", "bags"])
@pytest.mark.parametrize("n", [BATCH, 70, 33])
def test_it_gives_what_the_gathered_step_gives(
    steps: tuple[TrainStep, TrainStep], n: int, most: int
) -> None:
    projected, gathered = steps
    data(BATCH, seed=9).take(projected)  # leaves stale outputs in the buffers
    batch = data(n, most=most)
    assert_same(batch, batch.take(projected), batch.take(gathered))


@pytest.mark.parametrize("n", [1, 2])
def test_it_gives_that_for_a_sample_or_two(
    steps: tuple[TrainStep, TrainStep], n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For which it would not be taken."""
    batch = data(n)
    assert batch.take(steps[0]).row_grads
    monkeypatch.setattr(KeyPlan, "worth_projecting", lambda self, units: True)
    assert_same(batch, batch.take(steps[0]), batch.take(steps[1]))


def test_gradients_are_those_of_float64() -> None:
    """By hand: an MLP of two ReLU layers over the matrix, and its chain rule."""
    step, batch = make(micro_batches=2), data(BATCH, seed=3, most=3)
    result = batch.take(step)
    matrix = np.zeros((BATCH, WIDTH), np.float32)
    matrix[:, :DENSE] = batch.dense
    batch.plan.gather(batch.values, matrix)
    w0, b0, w1, b1, w2, b2 = (np.asarray(w.value, float) for w in network().trainable_variables)
    x = matrix.astype(float)
    h0 = np.maximum(x @ w0 + b0, 0)
    h1 = np.maximum(h0 @ w1 + b1, 0)
    probabilities = 1 / (1 + np.exp(-(h1 @ w2 + b2)[:, 0]))
    d2 = (probabilities - batch.labels)[:, None] / BATCH
    d1 = (d2 @ w2.T) * (h1 > 0)
    d0 = (d1 @ w1.T) * (h0 > 0)
    grads = (x.T @ d0, d0.sum(0), h0.T @ d1, d1.sum(0), h1.T @ d2, d2.sum(0))
    hit = np.where(batch.labels == 1, probabilities, 1 - probabilities)
    assert result.loss == pytest.approx(-np.log(hit).mean(), rel=1e-6)
    np.testing.assert_allclose(result.probabilities, probabilities, rtol=1e-5)
    flat = np.concatenate([g.ravel() for g in grads])
    assert_close(result.dense_grads, flat)
    summed = batch.plan.scatter((d0 @ w0.T).astype(np.float32))
    assert_close(row_grads(batch, result), summed)


@pytest.mark.parametrize("activation", ["gelu", "linear"])
def test_other_activations_and_no_bias(activation: str) -> None:
    def build() -> keras.Model:
        inputs = keras.Input((WIDTH,))
        kernels = [keras.initializers.GlorotUniform(seed=seed) for seed in (1, 2)]
        first = keras.layers.Dense(64, activation, use_bias=False, kernel_initializer=kernels[0])(
            inputs
        )
        logits = keras.layers.Dense(1, kernel_initializer=kernels[1])(first)
        return keras.Model(inputs, keras.ops.reshape(logits, (-1,)))

    projected, gathered = (make(on, network=build_network(build, 1)) for on in (True, False))
    assert projected.parameters == 64 * WIDTH + 65
    batch = data(BATCH)
    assert_same(batch, batch.take(projected), batch.take(gathered))


def test_it_may_be_compiled_by_xla() -> None:
    batch = data(BATCH)
    result = batch.take(make(xla="on"))
    assert_same(batch, result, batch.take(make(False)))


def test_parameters_come_from_the_argument_only() -> None:
    step, batch = make(), data(BATCH)
    first = step.initial()
    before = batch.take(step, first)
    before_grads = row_grads(batch, before)
    other = batch.take(step, first * 3)
    assert other.loss != before.loss
    assert_same(batch, other, batch.take(make(False), first * 3))
    after = batch.take(step, first)
    assert after.loss == before.loss
    np.testing.assert_array_equal(row_grads(batch, after), before_grads)
    np.testing.assert_array_equal(step.initial(), first)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_second_run_has_the_same_bits_and_it_is_traced_once(micro_batches: int) -> None:
    runs: list[list[Any]] = []
    for step in (make(micro_batches=micro_batches) for _ in range(2)):
        runs.append([])
        for n in (BATCH, 70, BATCH, 33):
            batch = data(n, most=2)
            result = batch.take(step)
            assert result.projections
            runs[-1] += [result.loss, result.probabilities, result.dense_grads.copy()]
            runs[-1].append(row_grads(batch, result))
        assert step.traces == 0, "nothing was gathered"
        assert step._projected is not None
        assert step._projected.traces == 1
    for first, second in zip(*runs, strict=True):
        np.testing.assert_array_equal(first, second)


def test_results_but_the_projections_survive_the_next_step() -> None:
    step, batch = make(micro_batches=2), data(BATCH)
    result = batch.take(step)
    kept = result.dense_grads.copy(), result.probabilities.copy()
    data(BATCH, seed=5).take(step)
    np.testing.assert_array_equal(result.dense_grads, kept[0])
    np.testing.assert_array_equal(result.probabilities, kept[1])


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["rows", "dense features", "first layer", "later layer"])
def test_what_is_not_finite_diverges_and_the_next_step_runs(where: str, number: float) -> None:
    step, batch = make(micro_batches=2), data(BATCH)
    parameters = step.initial()
    if where == "rows":
        batch.values[-1] = number
    elif where == "dense features":
        batch.dense[BATCH - 1, 0] = number
    else:
        parameters[0 if where == "first layer" else -1] = number
    with pytest.raises(Diverged, match=r"step 41: (loss is|a gradient is not finite)"):
        batch.take(step, parameters)
    good = data(BATCH)
    assert_same(good, good.take(step), good.take(make(False)))


def test_an_infinite_gradient_is_no_silent_success() -> None:
    def build() -> keras.Model:
        inputs = keras.Input((WIDTH,))
        first = keras.layers.Dense(64, kernel_initializer="zeros")(inputs)
        # sqrt at 0: a finite loss whose gradient is infinite
        return keras.Model(inputs, keras.ops.sum(keras.ops.sqrt(first), axis=1))

    batch = data(BATCH)
    with pytest.raises(Diverged, match="step 41: a gradient is not finite"):
        batch.take(make(network=build_network(build, 1)))


def test_batches_of_distinct_keys_gather() -> None:
    step, batch = make(), data(BATCH, keys=2**40)
    assert not batch.plan.worth_projecting(HIDDEN[0])
    result, want = batch.take(step), batch.take(make(False))
    assert not result.projections
    assert result.loss == want.loss  # the same function
    np.testing.assert_array_equal(row_grads(batch, result), row_grads(batch, want))
    assert data(BATCH).take(step).projections, "the next batch chooses anew"


def test_off_is_never() -> None:
    batch = data(BATCH)
    assert batch.plan.worth_projecting(HIDDEN[0])
    assert not batch.take(make(False)).projections


def test_a_network_of_two_inputs_gathers() -> None:
    sparse = tuple(SparseInput(f"C{i}", 15) for i in range(3))
    model = deepfm.create(ModelContext(DENSE, sparse, HIDDEN, SEED))
    step = TrainStep(
        build_network(model.build, SEED), batch_size=8, dense=DENSE, width=48, project=True
    )
    step.rows(8)[:] = 0.5
    dense = np.zeros((8, DENSE), np.float32)
    assert step.run(dense, dense[:, 0], step.initial(), step=1).row_grads


@pytest.mark.parametrize(
    ("training", "project"),
    [("{}", "auto"), ("{project: auto}", "auto"), ("{project: off}", "off")],  # off: YAML's false
)
def test_the_spec_says_whether_it_may_be_taken(training: str, project: str) -> None:
    assert parse(SPEC + training).training.project == project
    with pytest.raises(InvalidInput, match=r"training\.project"):
        parse(SPEC + "{project: on}")


def test_predictions_are_those_of_the_projected_step() -> None:
    step, batch = make(micro_batches=2), data(70)
    result = batch.take(step)
    batch.plan.gather(batch.values, step.rows(70))
    predicted = step.predict(batch.dense, step.initial())
    np.testing.assert_allclose(predicted, result.probabilities, rtol=1e-5)
