"""What a newcomer writes: the same network in idiomatic Keras (`Embedding` layers, `fit`).

One process; every slot has a table as large as its cardinality, keys become row numbers by modulo.
Prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import keras
import numpy as np
import tensorflow as tf

from bench import workload as w
from trainer_service.sources.synthetic import CARDINALITIES


def build() -> keras.Model:
    dense, rows = keras.Input((w.DENSE,)), keras.Input((w.SLOTS,), dtype="int64")
    x = keras.layers.Concatenate()(
        [
            dense,
            *(
                keras.layers.Embedding(int(size), w.DIM)(rows[:, slot])
                for slot, size in enumerate(CARDINALITIES)
            ),
        ]
    )
    for units in w.HIDDEN:
        x = keras.layers.Dense(units, activation="relu")(x)
    return keras.Model([dense, rows], keras.layers.Dense(1)(x))


class Clock(keras.callbacks.Callback):
    """Times of the ends of all steps."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002  # Keras's
        float(logs["loss"])  # waits for the step, which TensorFlow may only have queued
        self.ends.append(time.perf_counter())


def main() -> None:
    args = w.arguments(__doc__)
    samples = w.read(w.data(args).train(w.rows(args)))
    rows = (samples.keys % np.asarray(CARDINALITIES, np.uint64)).astype(np.int64)
    model = build()
    model.compile(keras.optimizers.Adagrad(0.05), keras.losses.BinaryCrossentropy(from_logits=True))
    clock = Clock()
    data = (
        tf.data.Dataset.from_tensor_slices(((samples.dense, rows), samples.labels))
        .batch(args.batch_size)
        .prefetch(2)
    )
    model.fit(data, verbose=0, callbacks=[clock])
    seconds = clock.ends[-1] - clock.ends[args.warm_up - 1]
    sys.stdout.write(
        json.dumps({"samples_per_second": args.steps * args.batch_size / seconds}) + "\n"
    )


if __name__ == "__main__":
    main()
