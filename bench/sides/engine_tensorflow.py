"""The planner and the store path of one trainer (W2) against TensorFlow, in turn in one process.

W2: 100,000 Zipf ids a call (about 40 % distinct), 10 M rows of dim 16 with Adagrad. Ours: plan
(unique), pull, gather, then scatter (gradient sum) and push, keys of 64 bits through a hash table.
As by default, our planner has one thread (`_all`: as many as cores), our shard all cores (`_1t`:
one thread); TensorFlow uses all cores.
TensorFlow: `tf.unique`, gather, segment sum and its sparse Adagrad on a plain variable; its ids are
row numbers already. Planner: 106,496 Zipf ids into 16 shards, against `tf.unique` and
`tf.dynamic_partition`. Prints one JSON line of medians in million ids per second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ps_service import _native

DIM, BATCH, LR, ACCUMULATOR = 16, 100_000, 0.05, 0.1
PLANNER_IDS, PLANNER_SHARDS = 106_496, 16  # 4096 samples of 26 slots
PARTITIONS, BATCHES, ZIPF = 1024, 8, 1.035
CORES = os.cpu_count() or 1
Ids = NDArray[np.int64]


def zipf_ids(rows: int, size: int, batches: int, seed: int) -> list[Ids]:
    """Row numbers with P(rank r) ~ (r + 1)^-1.035, frequent ones spread over the table."""
    cumulative = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -ZIPF)
    rng = np.random.default_rng(seed)
    ranks = [
        np.minimum(np.searchsorted(cumulative, rng.random(size) * cumulative[-1]), rows - 1)
        for _ in range(batches)
    ]
    return [(rank * 7_368_787) % rows for rank in ranks]


def keys_of(ids: Ids) -> NDArray[np.uint64]:
    """A 64-bit key per row number, as a hash of a feature's text would be."""
    keys = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return keys ^ (keys >> np.uint64(29))


def planner(size: int, shards: int, threads: int) -> Callable[[NDArray[np.uint64]], _native.Plan]:
    native = _native.Planner(
        feature_tables=np.zeros(1, np.uint32), dims=np.array([DIM], np.uint32),
        columns=np.zeros(1, np.uint32), combiners=["sum"],
        owners=(np.arange(PARTITIONS) * shards // PARTITIONS).astype(np.uint16),
        shards=shards, width=DIM, threads=threads,
    )  # fmt: skip
    offsets = np.arange(size + 1, dtype=np.int32)
    return lambda keys: native.plan(keys, offsets, size)


def alternate(sides: dict[str, Callable[[int], Any]], size: int, rounds: int) -> dict[str, float]:
    """Median rates in million ids/s; the first round warms up."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            start = time.perf_counter()
            side(number % BATCHES)
            if number:
                rates[name].append(size / (time.perf_counter() - start) / 1e6)
    return {name: statistics.median(values) for name, values in rates.items()}


def planner_sides(rows: int) -> dict[str, Callable[[int], Any]]:
    batches = zipf_ids(rows, PLANNER_IDS, BATCHES, seed=5)
    keys = [keys_of(ids) for ids in batches]
    tensors = [tf.constant(k.view(np.int64)) for k in keys]
    plan = planner(PLANNER_IDS, PLANNER_SHARDS, 1)
    plan_by_team = planner(PLANNER_IDS, PLANNER_SHARDS, CORES)

    @tf.function
    def unique_partition(ids: tf.Tensor) -> Any:
        distinct, inverse = tf.unique(ids)
        shard = tf.cast(tf.math.floormod(distinct, PLANNER_SHARDS), tf.int32)
        return tf.dynamic_partition(distinct, shard, PLANNER_SHARDS), inverse

    return {
        "planner_mids": lambda i: plan(keys[i]),
        "planner_mids_all": lambda i: plan_by_team(keys[i]),
        "tf_unique_partition_mids": lambda i: unique_partition(tensors[i])[1].numpy(),
    }


class OurStore:
    """One trainer and one shard in one process."""

    def __init__(self, rows: int, threads: int) -> None:
        table = _native.TableConfig(
            name="t", dim=DIM, optimizer="adagrad",
            optimizer_params={"lr": LR, "initial_accumulator": ACCUMULATOR, "epsilon": 1e-7},
            initializer="uniform", initializer_params={"low": -0.01, "high": 0.01},
        )  # fmt: skip
        self._shard = _native.SparseShard([table], partitions=PARTITIONS, seed=1, threads=threads)
        for first in range(0, rows, BATCH):
            keys = keys_of(np.arange(first, min(rows, first + BATCH)))
            self._shard.pull(np.array([keys.size], np.uint32), keys, insert=True)
        self._plan = planner(BATCH, 1, 1)
        self._matrix = np.empty((BATCH, DIM), np.float32)

    def step(self, keys: NDArray[np.uint64], scale: np.float32) -> None:
        """Unique, pull, gather, the gradient of |matrix|^2, sum, push."""
        plan = self._plan(keys)
        plan.gather(self._shard.pull_array(plan.counts, plan.unique, insert=True), self._matrix)
        np.multiply(self._matrix, scale, out=self._matrix)
        self._shard.push(plan.counts, plan.unique, plan.scatter(self._matrix))


def w2_sides(rows: int) -> dict[str, Callable[[int], Any]]:
    batches = zipf_ids(rows, BATCH, BATCHES, seed=7)
    keys = [keys_of(ids) for ids in batches]
    tensors = [tf.constant(ids) for ids in batches]
    table = tf.Variable(tf.random.uniform((rows, DIM), -0.01, 0.01))
    accumulator = tf.Variable(tf.fill((rows, DIM), ACCUMULATOR))
    ours, alone, scale = OurStore(rows, CORES), OurStore(rows, 1), np.float32(1e-3)

    @tf.function
    def step(ids: tf.Tensor) -> tf.Tensor:
        distinct, inverse = tf.unique(ids)
        matrix = tf.gather(tf.gather(table, distinct), inverse)
        grads = tf.math.unsorted_segment_sum(matrix * scale, inverse, tf.size(distinct))
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=table.handle, accum=accumulator.handle, lr=LR, epsilon=1e-7, grad=grads,
            indices=distinct,
        )  # fmt: skip
        return tf.size(distinct)

    return {
        "w2_mkeys": lambda i: ours.step(keys[i], scale),
        "w2_mkeys_1t": lambda i: alone.step(keys[i], scale),
        "w2_tf_mkeys": lambda i: int(step(tensors[i])),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args(argv)
    result = alternate(planner_sides(args.rows), PLANNER_IDS, args.rounds)
    result |= alternate(w2_sides(args.rows), BATCH, args.rounds)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
