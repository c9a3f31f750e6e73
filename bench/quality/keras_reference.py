"""DeepFM in plain Keras with in-memory embeddings on the Criteo sample: the accuracy that our jobs
are held to.

The same recipe as examples/criteo.yaml: integers become sign(x)·ln(1 + |x|) with missing as 0;
every distinct category text, the empty one included, is a row of its own; rows of 1 + dim floats
start uniform in ±0.01 under Adagrad, dense parameters under Adam. Rows of categories that only the
held-out part has stay at their initial values. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
import time
from itertools import islice
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from trainer_service.evaluate import exact_auc, log_losses  # noqa: E402  # needs the path above
from trainer_service.models import ModelContext, SparseInput, deepfm  # noqa: E402

DENSE, SPARSE, DIM, HIDDEN = 13, 26, 16, (256, 128, 64)


def load(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """labels (n,), dense (n, 13), rows (n, 26) int32 into one table, and the table's size."""
    vocabulary: dict[tuple[int, str], int] = {}
    labels, dense, rows = [], [], []
    with gzip.open(path, "rt", newline="") as file:
        for record in islice(csv.reader(file, delimiter="\t"), 1, None):
            labels.append(float(record[0]))
            dense.append([float(x or 0) for x in record[1 : 1 + DENSE]])
            categories = enumerate(record[1 + DENSE : 1 + DENSE + SPARSE])
            rows.append([vocabulary.setdefault(key, len(vocabulary)) for key in categories])
    x = np.array(dense, np.float32)
    return (
        np.array(labels, np.float32),
        np.sign(x) * np.log1p(np.abs(x)),
        np.array(rows, np.int32),
        len(vocabulary),
    )


class Reference:
    """The network of our job, with the embeddings as one variable."""

    def __init__(self, rows: int, seed: int) -> None:
        keras.utils.set_random_seed(seed)
        sparse = tuple(SparseInput(f"C{i + 1}", DIM) for i in range(SPARSE))
        self._network = deepfm.create(ModelContext(DENSE, sparse, HIDDEN, seed)).build()
        uniform = keras.initializers.RandomUniform(-0.01, 0.01, seed=seed)
        self._table = keras.layers.Embedding(rows, DIM + 1, embeddings_initializer=uniform)
        self._table.build()
        self._adagrad = keras.optimizers.Adagrad(0.05, initial_accumulator_value=0.1)
        self._adagrad.build([self._table.embeddings])
        self._adam = keras.optimizers.Adam(1e-3)
        self._adam.build(self._network.trainable_variables)

    def _logits(self, dense: tf.Tensor, rows: tf.Tensor, *, training: bool) -> tf.Tensor:
        vectors = tf.reshape(self._table(rows), (-1, SPARSE * (DIM + 1)))
        return self._network([dense, vectors], training=training)

    @tf.function(reduce_retracing=True)
    def step(self, dense: tf.Tensor, rows: tf.Tensor, labels: tf.Tensor) -> None:
        """One step of both optimizers on the mean log loss."""
        table, variables = [self._table.embeddings], self._network.trainable_variables
        with tf.GradientTape() as tape:
            logits = self._logits(dense, rows, training=True)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_mean(losses)
        wanted = [v.value for v in (*table, *variables)]
        table_grad, *grads = tape.gradient(loss, wanted)
        self._adagrad.apply([table_grad], table)
        self._adam.apply(grads, variables)

    @tf.function(reduce_retracing=True)
    def predict(self, dense: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Probabilities (n,)."""
        return tf.sigmoid(self._logits(dense, rows, training=False))


def main() -> None:
    """Trains on the first 80 % of the rows in file order, judges the last 20 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = ROOT.parent / "shared" / "data" / "criteo" / "data.tsv.gz"
    parser.add_argument("--data", type=Path, default=default)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    labels, dense, rows, size = load(args.data)
    split, start = int(0.8 * len(labels)), time.perf_counter()
    model = Reference(size, args.seed)
    for _ in range(args.epochs):
        for a in range(0, split, args.batch_size):
            b = min(a + args.batch_size, split)
            model.step(*(tf.constant(x[a:b]) for x in (dense, rows, labels)))
    seconds = time.perf_counter() - start
    parts = np.array_split(np.arange(split, len(labels)), 16)
    predicted = np.concatenate(
        [model.predict(tf.constant(dense[p]), tf.constant(rows[p])).numpy() for p in parts]
    )
    held_out = labels[split:]
    result = {
        "auc": exact_auc(held_out, predicted),
        "logloss": float(log_losses(held_out, predicted).mean()),
        "epochs": args.epochs,
        "batch_size": args.batch_size,
        "seed": args.seed,
        "train_rows": split,
        "test_rows": len(held_out),
        "embedding_rows": size,
        "samples_per_second": args.epochs * split / seconds,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
