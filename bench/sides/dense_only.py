"""The limit: the dense part of the workload alone in TensorFlow, its input a constant in which
dense features and embeddings are side by side already, as a trainer of ours gathers them.

Forward, backward and Adam; no trainer on this machine can be faster. Prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import keras
import tensorflow as tf

from bench import network
from bench import workload as w


def main() -> None:
    args = w.arguments(__doc__)
    width = w.DENSE + w.SLOTS * w.DIM
    inputs = tf.random.normal((args.batch_size, width), stddev=0.01, seed=1)
    model = network.build_joined(width, w.HIDDEN)
    variables = model.trainable_variables
    adam = keras.optimizers.Adam(1e-3)
    adam.build(variables)

    @tf.function(jit_compile=args.xla)
    def step(labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            logits = model(inputs, training=True)
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
            )
        gradients = tape.gradient(loss, [inputs, *variables])
        adam.apply(gradients[1:], variables)
        return loss + 0.0 * tf.reduce_sum(gradients[0])  # so that it isn't left out

    rows, start = w.read(w.data(args).train(w.rows(args))), 0.0
    for number, batch in enumerate(rows.batches(args.batch_size)):
        if number == args.warm_up:
            start = time.perf_counter()
        float(step(tf.constant(batch.labels)))
    seconds = time.perf_counter() - start
    sys.stdout.write(
        json.dumps({"samples_per_second": args.steps * args.batch_size / seconds}) + "\n"
    )


if __name__ == "__main__":
    main()
