"""What a projection must compute, by loops in NumPy float64, and batches to compute it for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ps_service import _native
from tests.unit.ps_service.native import reference as ref

PARTITIONS = 16
TOLERANCE = 2e-5  # of the greatest number in a result, relative: some hundred float32 sums in a row


@dataclass
class Batch:
    """Keys of some features, and the planner's arguments."""

    dims: list[int]  # of tables
    feature_tables: list[int]
    combiners: list[str]
    bags: list[list[list[int]]]  # of each feature, of each sample
    samples: int
    dense: int

    @property
    def width(self) -> int:
        return self.dense + sum(self.dims[t] for t in self.feature_tables)

    def plan(self, shards: int = 1, threads: int = 1) -> _native.Plan:
        dims = [self.dims[t] for t in self.feature_tables]
        planner = _native.Planner(
            feature_tables=ref.u32(*self.feature_tables),
            dims=ref.u32(*self.dims),
            columns=ref.u32(*np.cumsum([self.dense, *dims])[:-1]),
            combiners=self.combiners,
            owners=(np.arange(PARTITIONS) * 7 % shards).astype(np.uint16),
            shards=shards,
            width=self.width,
            threads=threads,
        )
        lengths = [len(bag) for feature in self.bags for bag in feature]
        offsets = np.cumsum([0, *lengths]).astype(np.int32)
        keys = [key for feature in self.bags for bag in feature for key in bag]
        return planner.plan(ref.u64(keys), offsets, self.samples)

    def spans(self, plan: _native.Plan) -> dict[tuple[int, int], slice]:
        """Where the row of each (table, key) is in the plan's values."""
        spans, place, at = {}, 0, 0
        for counts in plan.counts.tolist():
            for table, count in enumerate(counts):
                for key in plan.unique[place : place + count].tolist():
                    spans[table, key] = slice(at, at + self.dims[table])
                    at += self.dims[table]
                place += count
        return spans

    def values(self, plan: _native.Plan) -> np.ndarray:
        """Rows that depend on nothing but table and key."""
        values = np.empty(plan.value_floats.sum(), np.float32)
        for (table, key), span in self.spans(plan).items():
            values[span] = np.random.default_rng([table, key]).normal(size=self.dims[table])
        return values


@dataclass
class Arrays:
    """Everything but the rows: float32."""

    dense: np.ndarray  # (samples, D)
    weights: np.ndarray  # (width, units)
    bias: np.ndarray | None  # (units,)
    grads: np.ndarray  # (samples, units)
    relu: bool


def arrays(batch: Batch, units: int, bias: bool = True, relu: bool = False) -> Arrays:
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    return Arrays(
        normal(batch.samples, batch.dense),
        normal(batch.width, units),
        normal(units) if bias else None,
        normal(batch.samples, units),
        relu,
    )


@dataclass
class Outcome:
    outputs: np.ndarray
    weight_grads: np.ndarray
    bias_grads: np.ndarray | None
    row_grads: np.ndarray  # as values
    checksum: float


def project(
    plan: _native.Plan, values: np.ndarray, numbers: Arrays, pieces: list[slice]
) -> Outcome:
    """All samples, in pieces with a projection each."""
    samples, units = numbers.grads.shape
    outputs = np.full((samples, units), np.nan, np.float32)
    weight_grads, checksum = np.zeros_like(numbers.weights), 0.0
    bias_grads = None if numbers.bias is None else np.zeros_like(numbers.bias)
    projections = [_native.Projection() for _ in pieces]
    for projection, piece in zip(projections, pieces, strict=True):
        projection.take(plan, values, numbers.dense[piece], piece.start)
        projection.forward(numbers.weights, numbers.bias, numbers.relu, outputs[piece])
        of_weights = np.full_like(numbers.weights, np.nan)
        of_bias = None if numbers.bias is None else np.full_like(numbers.bias, np.nan)
        checksum += projection.backward(
            numbers.weights,
            numbers.relu,
            outputs[piece],
            numbers.grads[piece],
            of_weights,
            of_bias,
        )
        weight_grads += of_weights
        if of_bias is not None:
            bias_grads += of_bias
    return Outcome(outputs, weight_grads, bias_grads, plan.add_up(*projections), checksum)


def expected(
    batch: Batch, plan: _native.Plan, values: np.ndarray, numbers: Arrays, outputs: np.ndarray
) -> Outcome:
    """Plain loops over bags, and products of matrices, in float64. Where `outputs` are 0 decides
    which gradients a ReLU drops: float64 may see another sign in a number next to 0.
    """
    matrix = np.zeros((batch.samples, batch.width))
    matrix[:, : batch.dense] = numbers.dense
    weights, grads = numbers.weights.astype(np.float64), numbers.grads.astype(np.float64)
    if numbers.relu:
        grads[outputs <= 0] = 0.0
    grads_of_matrix = grads @ weights.T
    row_grads, spans, column = np.zeros(len(values)), batch.spans(plan), batch.dense
    for table, combiner, feature in zip(
        batch.feature_tables, batch.combiners, batch.bags, strict=True
    ):
        columns = slice(column, column + batch.dims[table])
        column = columns.stop
        for sample, bag in enumerate(feature):
            power = {"sum": 0.0, "sqrtn": 0.5, "mean": 1.0}[combiner]
            for key in bag:
                factor = len(bag) ** -power
                matrix[sample, columns] += factor * values[spans[table, key]].astype(np.float64)
                row_grads[spans[table, key]] += factor * grads_of_matrix[sample, columns]
    bias = 0.0 if numbers.bias is None else numbers.bias.astype(np.float64)
    product = matrix @ weights + bias
    return Outcome(
        np.maximum(product, 0.0) if numbers.relu else product,
        matrix.T @ grads,
        None if numbers.bias is None else grads.sum(0),
        row_grads,
        float(row_grads.sum()),
    )


def assert_close(got: np.ndarray | None, want: np.ndarray | None) -> None:
    assert got is not None
    assert want is not None
    scale = max(1.0, float(np.abs(want).max(initial=0.0)))
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE * scale)


def cut(samples: int, size: int) -> list[slice]:
    return [slice(at, min(samples, at + size)) for at in range(0, samples, size)]


def clicks(features: int = 6, samples: int = 2048, dim: int = 16, keys: int = 50) -> Batch:
    """One key a bag, as many as `keys` in each feature."""
    draws = np.random.default_rng(7).integers(0, keys, (features, samples, 1))
    return Batch(
        [dim] * features,
        list(range(features)),
        ["sum"] * features,
        draws.tolist(),
        samples,
        dense=13,
    )
