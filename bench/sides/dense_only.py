"""The limit: the dense part of the benchmark's DeepFM alone, embeddings a constant.

Prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import keras
import tensorflow as tf

from bench import workload as w


def main() -> None:
    args = w.arguments(__doc__)
    embeddings = tf.random.normal((args.batch_size, w.SLOTS, w.DIM + 1), stddev=0.01, seed=1)
    deep = keras.Sequential([keras.Input((w.DENSE + w.SLOTS * w.DIM,))])
    for units in w.HIDDEN:
        deep.add(keras.layers.Dense(units, activation="relu"))
    deep.add(keras.layers.Dense(1))
    first_order = keras.layers.Dense(1)
    first_order.build((None, w.DENSE))
    variables = deep.trainable_variables + first_order.trainable_variables
    adam = keras.optimizers.Adam(1e-3)
    adam.build(variables)

    @tf.function
    def step(dense: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(embeddings)
            factors = embeddings[:, :, 1:]
            total = tf.reduce_sum(factors, 1)
            pairs = 0.5 * tf.reduce_sum(total * total - tf.reduce_sum(factors * factors, 1), 1)
            flat = tf.reshape(factors, [-1, w.SLOTS * w.DIM])
            logits = deep(tf.concat([dense, flat], 1))[:, 0] + first_order(dense)[:, 0] + pairs
            logits += tf.reduce_sum(embeddings[:, :, 0], 1)
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
            )
        gradients = tape.gradient(loss, [embeddings, *variables])
        adam.apply(gradients[1:], variables)
        return loss + 0.0 * tf.reduce_sum(gradients[0])

    start = 0.0
    for number, (dense, _, labels) in enumerate(w.batches(args)):
        if number == args.warm_up:
            start = time.perf_counter()
        float(step(tf.constant(dense), tf.constant(labels)))
    seconds = time.perf_counter() - start
    sys.stdout.write(
        json.dumps({"samples_per_second": args.steps * args.batch_size / seconds}) + "\n"
    )


if __name__ == "__main__":
    main()
