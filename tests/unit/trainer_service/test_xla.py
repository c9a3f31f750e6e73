"""The choice between TensorFlow's graph and XLA: by the clock, by the spec, and when XLA can't."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from services.api.spec import parse, validate
from services.kit.errors import InvalidInput
from trainer_service import faster
from trainer_service.models import ModelContext, SparseInput, deepfm
from trainer_service.step import StepResult, TrainStep, build_network

BATCH, DENSE, FEATURES, DIM = 8, 2, 3, 4
WIDTH = FEATURES * (DIM + 1)


class Clock:
    """Stands still but for what the calls take."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, *seconds: float) -> Callable[[], None]:
        """A call that takes the seconds in turn, the last for ever."""
        times: Iterator[float] = iter(seconds)
        last = seconds[-1]

        def call() -> None:
            self.now += next(times, last)

        return call


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((0.02,), (0.01,), True),
        ((0.01,), (0.02,), False),
        ((0.01,), (0.0099,), False),  # noise
        ((9.0, 0.02), (30.0, 0.01), True),  # compiling doesn't count
        ((9.0, 0.02), (1.0, 0.03), False),
        ((0.02, 0.02, 5.0, 0.02), (0.03, 0.5, 0.01), True),  # nor does a slow moment
    ],
)
def test_the_faster_way_is_found(
    first: tuple[float, ...], second: tuple[float, ...], expected: bool
) -> None:
    clock = Clock()
    assert faster.second_is_faster(clock.work(*first), clock.work(*second), clock) is expected


def test_a_short_step_is_not_worth_compiling() -> None:
    clock = Clock()

    def never() -> None:
        raise AssertionError("compiled")

    assert not faster.second_is_faster(clock.work(9.0, 0.004), never, clock)


def deepfm_step(xla: Any) -> TrainStep:
    sparse = tuple(SparseInput(f"C{i}", DIM) for i in range(FEATURES))
    model = deepfm.create(ModelContext(DENSE, sparse, (8, 4), seed=11))
    network = build_network(model.build, 11)
    return TrainStep(network, batch_size=BATCH, dense=DENSE, width=WIDTH, xla=xla)


def run(step: TrainStep, n: int) -> StepResult:
    rng = np.random.default_rng(n)
    step.rows(n)[:] = rng.normal(size=(n, WIDTH))
    dense = rng.normal(size=(n, DENSE)).astype(np.float32)
    return step.run(dense, (rng.random(n) < 0.4).astype(np.float32), step.initial(), step=1)


def test_xla_gives_the_graphs_results_and_compiles_once() -> None:
    graph, compiled = deepfm_step("off"), deepfm_step("on")
    assert (graph.xla, compiled.xla) == (False, True)
    for n in (BATCH, 3, 1):
        want, got = run(graph, n), run(compiled, n)
        assert got.loss == pytest.approx(want.loss, rel=1e-5)
        np.testing.assert_allclose(got.row_grads[0], want.row_grads[0], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(got.dense_grads, want.dense_grads, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(got.probabilities, want.probabilities, rtol=1e-5)
    assert (graph.traces, compiled.traces) == (1, 1)


@pytest.mark.parametrize("second_wins", [True, False])
def test_auto_takes_what_was_measured(monkeypatch: pytest.MonkeyPatch, second_wins: bool) -> None:
    def measured(first: Callable[[], object], second: Callable[[], object]) -> bool:
        first()
        second()
        return second_wins

    monkeypatch.setattr("trainer_service.step.second_is_faster", measured)
    step = deepfm_step("auto")
    assert step.xla is second_wins
    before = step.traces
    run(step, BATCH)
    assert step.traces == before == 2, "the trial's compilation serves the training"


class Text(keras.layers.Layer):  # type: ignore[misc]
    """An operation that XLA doesn't know."""

    def call(self, x: Any) -> Any:
        return x + 0.0 * tf.strings.to_number(tf.strings.as_string(tf.stop_gradient(x)))


def unknown_to_xla() -> keras.Model:
    dense, rows = keras.Input((1,)), keras.Input((1,))
    return keras.Model([dense, rows], keras.ops.reshape(Text()(rows) + dense, (-1,)))


def test_a_model_that_xla_cant_compile_is_refused_or_runs_as_a_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = build_network(unknown_to_xla, 0)
    with pytest.raises(InvalidInput, match=r"training\.xla is on, but XLA can't compile"):
        TrainStep(network, batch_size=2, dense=1, width=1, xla="on")
    monkeypatch.setattr(faster, "WORTH_SECONDS", 0.0)
    step = TrainStep(network, batch_size=2, dense=1, width=1, xla="auto")
    assert not step.xla
    step.rows(2)[:] = 0
    zeros = np.zeros((2, 1), np.float32)
    result = step.run(zeros, zeros[:, 0], step.initial(), step=1)
    assert result.loss == pytest.approx(np.log(2), rel=1e-6)


@pytest.mark.parametrize(
    ("training", "field", "compiler"),
    [
        ("{}", "auto", "auto"),
        ("{xla: on}", "on", "on"),  # YAML's true
        ("{xla: off}", "off", "off"),
        ("{mode: sync}", "auto", "off"),  # equal bits in every run
        ("{mode: sync, xla: on}", "on", "on"),
    ],
)
def test_the_spec_names_the_compiler(training: str, field: str, compiler: str) -> None:
    spec = parse(f"""
name: xla
model: {{name: lr}}
data: {{source: "synthetic://criteo?rows=10"}}
features: {{dense: I1, sparse: {{C1: {{}}}}}}
training: {training}
""")
    assert (spec.training.xla, spec.training.compiler) == (field, compiler)
    assert validate(spec.model_dump(mode="json")).training.xla == field


def test_another_word_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"training\.xla"):
        parse("{name: a, model: {name: lr}, data: {source: 'synthetic://criteo'}, "
              "features: {sparse: {C1: {}}}, training: {xla: maybe}}")  # fmt: skip
