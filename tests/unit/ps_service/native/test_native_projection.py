"""The first layer by distinct rows against NumPy in float64, and against gather and scatter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps_service import _native
from tests.unit.ps_service.native import reference as ref
from tests.unit.ps_service.native.projection_reference import (
    Batch,
    arrays,
    assert_close,
    clicks,
    cut,
    expected,
    project,
)


@st.composite
def batches(draw) -> Batch:
    dims = draw(st.lists(st.sampled_from([1, 3, 16, 17, 32]), min_size=1, max_size=3))
    tables = st.integers(0, len(dims) - 1)  # so features may share one
    feature_tables = draw(st.lists(tables, min_size=1, max_size=6))
    samples = draw(st.integers(1, 21))
    key = st.one_of(st.sampled_from(ref.EXTREME_KEYS), st.integers(2, 6))
    least, most = draw(st.sampled_from([(1, 1), (0, 3)]))
    bag = st.lists(key, min_size=least, max_size=most)
    feature = st.lists(bag, min_size=samples, max_size=samples)
    combiner = st.sampled_from(["sum", "mean", "sqrtn"])
    return Batch(
        dims,
        feature_tables,
        [draw(combiner) for _ in feature_tables],
        [draw(feature) for _ in feature_tables],
        samples,
        draw(st.sampled_from([0, 1, 13, 16])),
    )


@settings(max_examples=150, deadline=None)
@given(
    batches(),
    st.sampled_from([1, 5, 64, 70]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 3]),
    st.data(),
)
def test_a_projection_is_what_products_of_the_matrix_are(batch, units, bias, relu, shards, data):
    plan = batch.plan(shards)
    values, numbers = batch.values(plan), arrays(batch, units, bias, relu)
    size = data.draw(st.integers(1, batch.samples), label="samples of a piece")
    got = project(plan, values, numbers, cut(batch.samples, size))
    want = expected(batch, plan, values, numbers, got.outputs)
    assert_close(got.outputs, want.outputs)
    assert_close(got.weight_grads, want.weight_grads)
    assert_close(got.row_grads, want.row_grads)
    if bias:
        assert_close(got.bias_grads, want.bias_grads)
    assert got.checksum == pytest.approx(
        want.checksum, abs=1e-3 * (1 + np.abs(want.row_grads).sum())
    )


@settings(max_examples=60, deadline=None)
@given(batches(), st.sampled_from([5, 64, 130]))
def test_it_stands_for_gather_a_product_and_scatter(batch, units):
    plan = batch.plan(2)
    values, numbers = batch.values(plan), arrays(batch, units)
    got = project(plan, values, numbers, cut(batch.samples, 8))
    matrix = np.zeros((batch.samples, batch.width), np.float32)
    matrix[:, : batch.dense] = numbers.dense
    plan.gather(values, matrix)
    assert_close(got.outputs, matrix @ numbers.weights + numbers.bias)
    assert_close(got.weight_grads, matrix.T @ numbers.grads)
    assert_close(got.row_grads, plan.scatter(numbers.grads @ numbers.weights.T))


@settings(max_examples=60, deadline=None)
@given(batches(), st.sampled_from([5, 64]), st.integers(2, 5))
def test_the_number_of_shards_changes_no_bit(batch, units, shards):
    one, many = batch.plan(1), batch.plan(shards)
    numbers, pieces = arrays(batch, units, relu=True), cut(batch.samples, 7)
    want = project(one, batch.values(one), numbers, pieces)
    got = project(many, batch.values(many), numbers, pieces)
    np.testing.assert_array_equal(got.outputs, want.outputs)
    np.testing.assert_array_equal(got.weight_grads, want.weight_grads)
    np.testing.assert_array_equal(got.bias_grads, want.bias_grads)
    assert got.checksum == want.checksum
    spans = batch.spans(many)
    for key, span in batch.spans(one).items():
        np.testing.assert_array_equal(got.row_grads[spans[key]], want.row_grads[span])


def test_a_large_batch_and_one_projection_for_batch_after_batch():
    """Lists that an earlier, larger batch left longer are no part of the next."""
    projection = _native.Projection()
    for batch, units in (
        (clicks(samples=2048, keys=900), 256),
        (clicks(features=9, samples=77, dim=5), 24),
        (clicks(features=1, samples=1, dim=40), 130),
    ):
        plan = batch.plan(3, threads=2)
        values, numbers = batch.values(plan), arrays(batch, units, relu=True)
        outputs = np.empty_like(numbers.grads)
        weight_grads, bias_grads = np.empty_like(numbers.weights), np.empty_like(numbers.bias)
        projection.take(plan, values, numbers.dense, 0)
        projection.forward(numbers.weights, numbers.bias, True, outputs)
        projection.backward(numbers.weights, True, outputs, numbers.grads, weight_grads, bias_grads)
        want = expected(batch, plan, values, numbers, outputs)
        assert_close(outputs, want.outputs)
        assert_close(weight_grads, want.weight_grads)
        assert_close(bias_grads, want.bias_grads)
        assert_close(plan.add_up(projection), want.row_grads)


def test_it_keeps_rows_of_its_own():
    batch = clicks(samples=64)
    plan = batch.plan()
    values, numbers = batch.values(plan), arrays(batch, 32)
    want, got = np.empty((2, 64, 32), np.float32)
    projection = _native.Projection()
    projection.take(plan, values, numbers.dense, 0)
    projection.forward(numbers.weights, numbers.bias, False, want)
    values.fill(np.nan)
    numbers.dense.fill(np.nan)
    projection.forward(numbers.weights, numbers.bias, False, got)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("broken", ["values", "grads"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_what_is_not_finite_shows(broken, number, relu):
    """A row in the outputs, a gradient in the sum that `backward` returns."""
    batch = clicks(samples=32, keys=3)
    plan = batch.plan()
    values, numbers = batch.values(plan), arrays(batch, 8, relu=relu)
    numbers.bias += 50.0 * relu  # no gradient is dropped
    (values if broken == "values" else numbers.grads.reshape(-1))[5] = number
    got = project(plan, values, numbers, cut(32, 32))
    where = got.outputs if broken == "values" else np.array(got.checksum)
    assert not np.isfinite(where).all()


@pytest.mark.parametrize("bags", [[[1]], [[1, 1, 2]]], ids=["one key", "bags"])
def test_there_may_be_no_samples(bags):
    batch = Batch([4], [0], ["sum"], [bags], samples=1, dense=2)
    plan = batch.plan()
    numbers = arrays(batch, 3)
    got = project(plan, batch.values(plan), numbers, [slice(0, 1), slice(1, 1)])
    whole = project(plan, batch.values(plan), numbers, [slice(0, 1)])
    np.testing.assert_array_equal(got.weight_grads, whole.weight_grads)
    np.testing.assert_array_equal(got.row_grads, whole.row_grads)
    np.testing.assert_array_equal(plan.add_up(), np.zeros_like(got.row_grads))


def zipf(features: int, samples: int, dim: int) -> Batch:
    """As the benchmark workload: 26 slots, Zipf, from few values to many."""
    rng = np.random.default_rng(3)
    sizes = np.geomspace(10, 2_000_000, features).astype(int)
    bags = [(rng.zipf(1.05, samples) % size).reshape(-1, 1).tolist() for size in sizes]
    return Batch(
        [dim] * features, list(range(features)), ["sum"] * features, bags, samples, dense=13
    )


def test_it_is_worth_while_where_samples_share_keys():
    shared = zipf(26, 4096, 16)
    for shards in (1, 4):
        assert shared.plan(shards).worth_projecting(256)
    assert not zipf(26, 4096, 1).plan().worth_projecting(256), "a row of one float"
    assert not shared.plan().worth_projecting(1), "a layer of one unit"
    distinct = clicks(features=4)
    distinct.bags = np.arange(4 * 2048).reshape(4, 2048, 1).tolist()
    assert not distinct.plan().worth_projecting(256)
    empty = clicks(features=4, samples=16)
    empty.bags = [[[]] * 16] * 4
    assert empty.plan().worth_projecting(256), "no row to multiply"
    nothing = clicks(features=4, samples=0)
    assert not nothing.plan().worth_projecting(256)
