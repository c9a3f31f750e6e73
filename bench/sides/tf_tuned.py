"""What a careful engineer gets from TensorFlow alone: the workload with everything in memory.

One fused table of all slots (the key modulo four times the slot's cardinality, at most 2^20 rows),
gathered once per distinct row (`tf.unique`), gradients summed by segment, and TensorFlow's own
sparse Adagrad; Adam for the network. Samples lie in memory as arrays. Prints one JSON line; with
`--full` one pass over all training rows and the AUC of the held-out ones.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import keras
import numpy as np
import tensorflow as tf

from bench import network
from bench import workload as w
from trainer_service.evaluate import Holdout
from trainer_service.sources.synthetic import CARDINALITIES

MOST_ROWS = 1 << 20  # of a slot
_ID_BITS = (1 << 48) - 1  # below the slot's number


class FusedTable:
    """All slots' rows in one variable, with their Adagrad accumulators."""

    def __init__(self) -> None:
        sizes = np.minimum(MOST_ROWS, 2 ** np.ceil(np.log2(4 * CARDINALITIES)).astype(np.int64))
        self._sizes = tf.constant(sizes)
        self._first = tf.constant(np.concatenate([[0], np.cumsum(sizes)[:-1]]))
        shape = (int(sizes.sum()), w.DIM)
        self._rows = tf.Variable(tf.random.uniform(shape, -0.01, 0.01, seed=3))
        self._sums = tf.Variable(tf.fill(shape, w.ACCUMULATOR))

    def find(self, keys: tf.Tensor) -> tf.Tensor:
        """(B, SLOTS) keys to as many row numbers, flat."""
        low = tf.bitwise.bitwise_and(keys, tf.constant(_ID_BITS, tf.int64))
        return tf.reshape(tf.math.floormod(low, self._sizes) + self._first, [-1])

    def gather(self, rows: tf.Tensor) -> tf.Tensor:
        return tf.gather(self._rows, rows)

    def update(self, rows: tf.Tensor, gradients: tf.Tensor) -> None:
        """One step of Adagrad on distinct `rows`."""
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=self._rows.handle, accum=self._sums.handle, lr=0.05, epsilon=1e-10,
            grad=gradients, indices=rows,
        )  # fmt: skip


class Trainer:
    """The compiled step, and prediction."""

    def __init__(self, *, xla: bool) -> None:
        self._table = FusedTable()
        self._network = network.build(w.DENSE, w.SLOTS * w.DIM, w.HIDDEN)
        self._variables = self._network.trainable_variables
        self._adam = keras.optimizers.Adam(1e-3)
        self._adam.build(self._variables)
        signature = [
            tf.TensorSpec((None, w.DENSE), tf.float32),
            tf.TensorSpec((None, w.SLOTS), tf.int64),
        ]
        labels = tf.TensorSpec((None,), tf.float32)
        self._dense = tf.function(self._forward_backward, jit_compile=xla)
        self.step = tf.function(self._step, input_signature=[*signature, labels])
        self.predict = tf.function(self._predict, input_signature=signature)

    def _step(self, dense: tf.Tensor, keys: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        distinct, places = tf.unique(self._table.find(keys), out_idx=tf.int32)
        rows = tf.reshape(tf.gather(self._table.gather(distinct), places), [-1, w.SLOTS * w.DIM])
        loss, row_gradients, gradients = self._dense(dense, rows, labels)
        self._adam.apply(gradients, self._variables)
        summed = tf.math.unsorted_segment_sum(
            tf.reshape(row_gradients, [-1, w.DIM]), places, tf.size(distinct)
        )
        self._table.update(distinct, summed)
        return loss

    def _forward_backward(self, dense: tf.Tensor, rows: tf.Tensor, labels: tf.Tensor) -> tuple:
        with tf.GradientTape() as tape:
            tape.watch(rows)
            logits = self._network([dense, rows], training=True)
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
            )
        gradients = tape.gradient(loss, [rows, *self._variables])
        return loss, gradients[0], gradients[1:]

    def _predict(self, dense: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(self._table.gather(self._table.find(keys)), [-1, w.SLOTS * w.DIM])
        return tf.sigmoid(self._network([dense, rows], training=False))


def main() -> None:
    args = w.arguments(__doc__)
    data = w.data(args)
    rows, trainer = w.read(data.train(w.rows(args))), Trainer(xla=args.xla)
    start, measured = 0.0, 0
    for number, batch in enumerate(rows.batches(args.batch_size)):
        if number == args.warm_up:
            start, measured = time.perf_counter(), 0
        keys = tf.constant(batch.keys.view(np.int64))
        float(trainer.step(tf.constant(batch.dense), keys, tf.constant(batch.labels)))
        measured += len(batch.labels)
    result = {"samples_per_second": measured / (time.perf_counter() - start)}
    if args.full:
        judged = Holdout()
        for batch in w.read(data.test()).batches(8192):
            keys = tf.constant(batch.keys.view(np.int64))
            judged.add(batch.labels, trainer.predict(tf.constant(batch.dense), keys).numpy(), None)
        result["auc"] = judged.result().auc
    result["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
