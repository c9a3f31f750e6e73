"""A job's model in plain TensorFlow and Keras, embeddings in memory: the accuracy that our jobs are
held to.

Rows, their order and the network are the job's own: its source gives the batches of a single
trainer, its model the layers and their initial weights. What is judged is everything between: no
server, no wire, no plan, no pipeline. Embedding rows are one variable under TensorFlow's own
Adagrad; rows that only held-out samples have stay at their initial values. Dense
parameters are under Keras's Adam. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ps_service.tables import dense_optimizer  # noqa: E402  # needs the path above
from services.api.spec import JobSpec, parse  # noqa: E402
from trainer_service.batch import Batch  # noqa: E402
from trainer_service.evaluate import Holdout, Progressive  # noqa: E402
from trainer_service.layout import Layout, build_layout, load_model  # noqa: E402
from trainer_service.sources import EndOfData, Source, open_holdout, open_training  # noqa: E402
from trainer_service.step import build_network  # noqa: E402

_CURVE_SECONDS = 0.5  # between two points
_WAIT_SECONDS = 60.0  # for a batch
_SIGNATURE = [
    tf.TensorSpec((None, None), tf.float32),  # dense (n, D)
    tf.TensorSpec((None,), tf.int32),  # row numbers (K,)
    tf.TensorSpec((None,), tf.int32),  # which of the F * n bags each is in (K,), rising
    tf.TensorSpec((None,), tf.float32),  # labels (n,)
]


@dataclass(frozen=True)
class Numbered:
    """A batch whose keys became row numbers of one table for all features."""

    batch: Batch
    rows: NDArray[np.int32]  # (K,)

    def inputs(self) -> tuple[tf.Tensor, ...]:
        """As _SIGNATURE says."""
        bags = np.repeat(
            np.arange(len(self.batch.offsets) - 1, dtype=np.int32), np.diff(self.batch.offsets)
        )
        return tuple(tf.constant(x) for x in (self.batch.dense, self.rows, bags, self.batch.labels))


def number(batches: list[Batch], layout: Layout) -> tuple[list[Numbered], int]:
    """The batches with row numbers, and how many rows there are. A row is a (table, key)."""
    features = len(layout.feature_tables)
    parts: list[list[NDArray[np.uint64]]] = [[] for _ in layout.tables]
    places: list[list[tuple[int, int, int]]] = [[] for _ in layout.tables]  # batch, first, last
    for index, batch in enumerate(batches):
        ends = batch.offsets[:: batch.samples] if batch.samples else [0] * (features + 1)
        for table, (first, last) in zip(layout.feature_tables, pairwise(ends), strict=True):
            parts[table].append(batch.keys[first:last])
            places[table].append((index, first, last))
    rows = [np.empty(len(b.keys), np.int32) for b in batches]
    total = 0
    for keys, where in zip(parts, places, strict=True):
        distinct, numbers = np.unique(np.concatenate(keys), return_inverse=True)
        at = 0
        for index, first, last in where:
            rows[index][first:last] = total + numbers[at : at + last - first]
            at += last - first
        total += len(distinct)
    return [Numbered(b, r) for b, r in zip(batches, rows, strict=True)], total


class Reference:
    """The job's network over one table of embeddings in memory.

    Raises ValueError for what it doesn't know: tables that differ or aren't Adagrad's, means.
    """

    def __init__(self, spec: JobSpec, layout: Layout, rows: int) -> None:
        first = layout.tables[0]
        alike = all(replace(t, name=first.name) == first for t in layout.tables)
        sparse, (dense, params, _) = first.optimizer, dense_optimizer(spec.optimizers.dense)
        if not alike or (sparse, dense, first.initializer) != ("adagrad", "adam", "uniform"):
            raise ValueError(f"no reference for {layout.tables} with {dense}")
        if set(layout.combiners) != {"sum"}:
            raise ValueError(f"no reference for combiners {layout.combiners}")
        self._width, self._features = first.dim, len(layout.feature_tables)
        self._adagrad = first.optimizer_params
        model = load_model(spec)
        self._network = build_network(model.build, spec.training.seed)
        self._joined = model.joined
        random = tf.random.Generator.from_seed(spec.training.seed)
        shape = (rows, self._width)
        low, high = (first.initializer_params[name] for name in ("low", "high"))
        self.table = tf.Variable(random.uniform(shape, low, high))
        self._squares = tf.Variable(tf.fill(shape, float(self._adagrad["initial_accumulator"])))
        self._adam = keras.optimizers.Adam(
            params["lr"], params["beta1"], params["beta2"], params["epsilon"]
        )
        self._adam.build(self._network.trainable_variables)

    def _logits(
        self, dense: tf.Tensor, vectors: tf.Tensor, bags: tf.Tensor, *, training: bool
    ) -> tf.Tensor:
        """`vectors` (K, width) are pooled by `bags`, feature by feature."""
        n = tf.shape(dense)[0]
        pooled = tf.math.unsorted_segment_sum(vectors, bags, self._features * n)
        columns = tf.transpose(tf.reshape(pooled, (self._features, n, self._width)), (1, 0, 2))
        side_by_side = tf.reshape(columns, (n, self._features * self._width))
        inputs = [dense, side_by_side]
        return self._network(tf.concat(inputs, 1) if self._joined else inputs, training=training)

    @tf.function(input_signature=_SIGNATURE)
    def step(
        self, dense: tf.Tensor, rows: tf.Tensor, bags: tf.Tensor, labels: tf.Tensor
    ) -> tf.Tensor:
        """One step of both optimizers on the mean log loss; probabilities (n,) from before it."""
        variables = self._network.trainable_variables
        distinct, index = tf.unique(rows)
        weights = tf.gather(self.table, distinct)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits = self._logits(dense, tf.gather(weights, index), bags, training=True)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_mean(losses)
        row_grads, *grads = tape.gradient(loss, [weights, *(v.value for v in variables)])
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=self.table.handle,
            accum=self._squares.handle,
            lr=float(self._adagrad["lr"]),
            epsilon=float(self._adagrad["epsilon"]),
            grad=tf.convert_to_tensor(row_grads),  # adds up what one row got in several samples
            indices=distinct,
        )
        self._adam.apply(grads, variables)
        return tf.sigmoid(logits)

    @tf.function(input_signature=_SIGNATURE)
    def predict(
        self, dense: tf.Tensor, rows: tf.Tensor, bags: tf.Tensor, labels: tf.Tensor
    ) -> tf.Tensor:
        """Probabilities (n,)."""
        del labels
        vectors = tf.gather(self.table, rows)
        return tf.sigmoid(self._logits(dense, vectors, bags, training=False))


def read(source: Source | None) -> list[Batch]:
    """All batches of a source."""
    batches: list[Batch] = []
    try:
        while source is not None:
            batch = source.next_batch(_WAIT_SECONDS)
            if batch is None:
                raise TimeoutError(f"no batch within {_WAIT_SECONDS:.0f} s")
            batches.append(batch)
    except EndOfData:
        pass
    finally:
        if source is not None:
            source.close()
    return batches


def run(spec: JobSpec) -> dict[str, Any]:
    """Trains, then judges the held-out rows.

    `curve` has (seconds, samples, AUC) of about every half second; the AUC is that of a trainer's
    progress, of as many of the last samples, each predicted before it was trained.
    """
    layout = build_layout(spec, load_model(spec))
    train = read(open_training(spec, rank=0, trainers=1))
    numbered, rows = number([*train, *read(open_holdout(spec))], layout)
    model, recent = Reference(spec, layout, rows), Progressive()
    start, samples, curve = time.perf_counter(), 0, list[tuple[float, int, float | None]]()
    for index, part in enumerate(numbered[: len(train)]):
        recent.add(part.batch.labels, model.step(*part.inputs()).numpy())
        samples += part.batch.samples
        seconds = time.perf_counter() - start
        if index == len(train) - 1 or not curve or seconds >= curve[-1][0] + _CURVE_SECONDS:
            curve.append((seconds, samples, recent.window().auc))
    held_out = Holdout()
    for part in numbered[len(train) :]:
        held_out.add(
            part.batch.labels, model.predict(*part.inputs()).numpy(), part.batch.probabilities
        )
    judged = held_out.result()
    return {
        "auc": judged.auc,
        "logloss": judged.logloss,
        "bayes_auc": judged.bayes_auc,
        "test_rows": judged.samples,
        "samples": samples,
        "embedding_rows": rows,
        "curve": curve,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = ROOT / "examples" / "criteo.yaml"
    parser.add_argument("--spec", type=Path, default=default, help="JobSpec; its mode is ignored")
    args = parser.parse_args()
    sys.stdout.write(json.dumps(run(parse(args.spec.read_text()))) + "\n")


if __name__ == "__main__":
    main()
