"""What a cache of the hottest rows in each trainer would save in mode hybrid, and what it would
cost. A simulation on W1's rows in one process: no servers, no wire. Prints one JSON line.

Every row that a trainer reads it also changes, in the same step. So a row in a cache is old at
once, and there are three ways to use it all the same in the next `STALENESS` steps:

- `returned`: each push brings the new values of the hot rows that it changed. This trainer's own
  gradients are in them.
- `replayed`: a hot row is read together with its optimizer's state, and the trainer does to its
  copy what the shard does to the row.
- `frozen`: the row as it was read, without the trainer's own gradients.

`traffic` has, for each batch size, number of trainers and size of the cache (of the rows that are
hottest in the whole trace: no cache knows better), the share of a trainer's reads that the cache
answers, how old those rows are, and the share of bytes it saves. `auc` trains the network in
each way, and `now`, without a cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import workload as w
from bench.network import build
from ps_service.sharding import ShardMap
from trainer_service.evaluate import exact_auc
from trainer_service.layout import build_layout, load_model
from trainer_service.sources.synthetic import CriteoModel
from trainer_service.step import TrainStep, build_network

STALENESS = 4  # training.staleness, and the most steps for which a cached row is used
WAYS = ("returned", "replayed", "frozen")
TRAFFIC_STEPS, SHARDS = 120, 2
HOTTEST = (1_000, 10_000, 100_000)  # sizes of a cache, in rows
LR, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-7  # the network's Adam
ROW_LR = 0.05  # the rows' Adagrad
_ROW_BYTES, _STATE_BYTES = 4 * w.DIM, 4 * w.DIM  # Adagrad has a sum of squares for each weight
_TRAINING, _TEST = 0, 1  # random streams
Floats = NDArray[np.float32]


def batch(size: int, seed: int, stream: int, index: int) -> w.Rows:
    """A stripe of the workload."""
    table, _ = CriteoModel().rows(size, (seed, stream, index))
    dense = np.stack([table[f"I{i + 1}"].to_numpy() for i in range(w.DENSE)], 1)
    keys = np.stack([table[f"C{i + 1}"].to_numpy().view(np.uint64) for i in range(w.SLOTS)], 1)
    return w.Rows(dense, keys, table["label"].to_numpy().astype(np.float32))


# ---- traffic


@dataclass
class Cache:
    """When the first trainer may use which row once more; rows by number."""

    hot: NDArray[np.bool_]
    way: str
    read: NDArray[np.int64] = field(init=False)  # the step after which the copy was made
    foreign: NDArray[np.int64] = field(init=False)  # others' pushes that were in it
    uses: int = 0
    hits: int = 0
    hot_uses: int = 0
    ages: list[float] = field(default_factory=list)  # mean of a step's hits, in steps
    missing: list[float] = field(default_factory=list)  # mean of a step's hits, others' pushes

    def __post_init__(self) -> None:
        self.read = np.full(len(self.hot), -(10**9), np.int64)
        self.foreign = np.zeros(len(self.hot), np.int64)

    def step(self, number: int, rows: NDArray[np.int64], pushes: NDArray[np.int64]) -> None:
        """Uses `rows`; `pushes` of other trainers each row has seen by now."""
        hot = rows[self.hot[rows]]
        hits = hot[number - self.read[hot] <= STALENESS]
        missed = hot[number - self.read[hot] > STALENESS]
        self.uses, self.hot_uses = self.uses + len(rows), self.hot_uses + len(hot)
        self.hits += len(hits)
        if len(hits):
            self.ages.append(float((number - self.read[hits]).mean()))
            self.missing.append(float((pushes[hits] - self.foreign[hits]).mean()))
        renewed = hot if self.way == "returned" else missed
        self.read[renewed] = number
        self.foreign[renewed] = pushes[renewed]

    def bytes_down(self, key_bytes: float) -> float:
        """Rows that came and the keys that asked for them, all steps together."""
        asked = self.uses - self.hits
        rows = asked * _ROW_BYTES
        if self.way == "returned":
            rows += self.hot_uses * _ROW_BYTES
        if self.way == "replayed":
            rows += (self.hot_uses - self.hits) * _STATE_BYTES
        return rows + asked * key_bytes


def traffic(size: int, trainers: int, hottest: Sequence[int]) -> dict[str, Any]:
    """Of one trainer of several."""
    steps = [
        [np.unique(batch(size, w.SEED, _TRAINING, t * trainers + i).keys) for i in range(trainers)]
        for t in range(TRAFFIC_STEPS)
    ]
    known, number, counts = np.unique(
        np.concatenate([keys for step in steps for keys in step]),
        return_inverse=True,
        return_counts=True,
    )
    ends = np.cumsum([len(keys) for step in steps for keys in step])[:-1]
    parts = np.split(number.ravel(), ends)
    order = np.argsort(-counts, kind="stable")
    caches = {}
    for rows in hottest:
        hot = np.zeros(len(known), bool)
        hot[order[:rows]] = True
        caches[rows] = {way: Cache(hot, way) for way in WAYS}
    pushes = np.zeros(len(known), np.int64)
    for t in range(TRAFFIC_STEPS):
        own, *others = parts[t * trainers : (t + 1) * trainers]
        for ways in caches.values():
            for cache in ways.values():
                cache.step(t, own, pushes)
        for other in others:
            pushes[other] += 1
    key_bytes, loads, parameters = wire(size)
    distinct = sum(len(step[0]) for step in steps)
    present = distinct * 2 * (_ROW_BYTES + key_bytes)
    dense = TRAFFIC_STEPS * 8 * parameters
    found = {}
    for rows, ways in caches.items():
        found[str(rows)] = {
            "answered": ways["returned"].hits / distinct,
            "answered_replayed": ways["replayed"].hits / distinct,
            "age_steps": statistics.mean(ways["returned"].ages),
            "age_steps_replayed": statistics.mean(ways["replayed"].ages),
            "others_missing": statistics.mean(ways["returned"].missing),
            "others_missing_replayed": statistics.mean(ways["replayed"].missing),
            "saved_of_sparse": {
                way: 1 - (cache.bytes_down(key_bytes) + present / 2) / present
                for way, cache in ways.items()
            },
            "saved_of_all": {
                way: (present / 2 - cache.bytes_down(key_bytes)) / (present + dense)
                for way, cache in ways.items()
            },
        }
    return {
        "distinct_keys": distinct / TRAFFIC_STEPS,
        "key_bytes": key_bytes,
        "fullest_shard": loads,
        "caches": found,
    }


def wire(size: int) -> tuple[float, float, int]:
    """Bytes of a key in a request, the fullest of SHARDS shards' keys over their mean, and the
    number of dense parameters.
    """
    spec = w.job("synthetic://criteo", size)
    model = load_model(spec)
    rows = batch(size, w.SEED, _TRAINING, 0)
    planner = build_layout(spec, model).planner(ShardMap.even(1024, SHARDS))
    offsets = np.arange(w.SLOTS * size + 1, dtype=np.int32)
    plan = planner.plan(np.ascontiguousarray(rows.keys.T).ravel(), offsets, size)
    of_shards = [sum(part.counts) for part in plan.shards]
    key_bytes = sum(len(part.keys) for part in plan.shards) / plan.unique_keys
    return key_bytes, max(of_shards) / statistics.mean(of_shards), model.build().count_params()


# ---- AUC


class Table:
    """All rows with Adagrad's sums, and the copies of each trainer."""

    def __init__(self, rows: int, trainers: int, seed: int, way: str) -> None:
        random = np.random.default_rng(seed)
        self.weights = random.uniform(-0.01, 0.01, (rows, w.DIM)).astype(np.float32)
        self.sums = np.full((rows, w.DIM), w.ACCUMULATOR, np.float32)
        self._way = way
        copies = 0 if way == "now" else trainers
        self._copies = [(self.weights.copy(), self.sums.copy()) for _ in range(copies)]
        self._read = np.full((copies, rows), -(10**9), np.int64)

    def pull(self, trainer: int, rows: NDArray[np.int64], step: int) -> Floats:
        """Weights of distinct `rows` as the trainer sees them at `step`."""
        if self._way == "now":
            return self.weights[rows]
        self._renew(trainer, rows[step - self._read[trainer, rows] > STALENESS], step)
        return self._copies[trainer][0][rows]

    def push(self, trainer: int, rows: NDArray[np.int64], grads: Floats, step: int) -> None:
        """Applies the trainer's gradients of `step`."""
        _adagrad(self.weights, self.sums, rows, grads)
        if self._way == "replayed":
            _adagrad(*self._copies[trainer], rows, grads)
        if self._way == "returned":
            self._renew(trainer, rows, step)

    def _renew(self, trainer: int, rows: NDArray[np.int64], step: int) -> None:
        weights, sums = self._copies[trainer]
        weights[rows], sums[rows] = self.weights[rows], self.sums[rows]
        self._read[trainer, rows] = step


def _adagrad(weights: Floats, sums: Floats, rows: NDArray[np.int64], grads: Floats) -> None:
    sums[rows] += grads**2
    weights[rows] -= ROW_LR * grads / np.sqrt(sums[rows] + EPSILON)


class Adam:
    """Of the flat dense parameters, as the dense-PS steps them."""

    def __init__(self, parameters: Floats) -> None:
        self.parameters = parameters
        self._first, self._second = np.zeros_like(parameters), np.zeros_like(parameters)
        self._steps = 0

    def step(self, gradient: Floats) -> None:
        self._steps += 1
        self._first += (1 - BETA1) * (gradient - self._first)
        self._second += (1 - BETA2) * (gradient**2 - self._second)
        rate = LR * np.sqrt(1 - BETA2**self._steps) / (1 - BETA1**self._steps)
        self.parameters = (
            self.parameters - rate * self._first / (np.sqrt(self._second) + EPSILON)
        ).astype(np.float32)


@dataclass(frozen=True)
class Numbered:
    """Samples whose keys became row numbers."""

    batches: Sequence[w.Rows]  # the last one is the held-out rows
    numbers: Sequence[NDArray[np.int64]]  # (samples, SLOTS) of each
    rows: int

    @classmethod
    def of(cls, batches: Sequence[w.Rows]) -> Numbered:
        known, number = np.unique(np.concatenate([b.keys for b in batches]), return_inverse=True)
        ends = np.cumsum([len(b.labels) for b in batches])[:-1]
        return cls(batches, np.split(number.reshape(-1, w.SLOTS), ends), len(known))


def test_auc(way: str, seed: int, trainers: int, data: Numbered, step: TrainStep) -> float:
    """Of the network trained in that way; the cache holds every row."""
    size, test = step.batch_size, data.batches[-1]
    table, adam = Table(data.rows, trainers, seed, way), Adam(step.initial())
    for t in range((len(data.batches) - 1) // trainers):
        gradients = []
        # All read before anyone writes, as trainers of one pace do.
        for trainer in range(trainers):
            at = t * trainers + trainer
            mine = data.batches[at]
            rows, inverse = np.unique(data.numbers[at], return_inverse=True)
            gathered = table.pull(trainer, rows, t)[inverse.ravel()]
            step.rows(size)[:] = gathered.reshape(size, -1)
            result = step.run(mine.dense, mine.labels, adam.parameters, step=t)
            gradients.append(
                (
                    rows,
                    summed(inverse.ravel(), np.concatenate(result.row_grads)),
                    result.dense_grads,
                )
            )
        for trainer, (rows, grads, _) in enumerate(gradients):
            table.push(trainer, rows, grads, t)
        adam.step(np.mean([dense for _, _, dense in gradients], axis=0))
    scores = []
    for at in range(0, len(test.labels), size):
        rows = data.numbers[-1][at : at + size]
        step.rows(len(rows))[:] = table.weights[rows].reshape(len(rows), -1)
        scores.append(step.predict(test.dense[at : at + size], adam.parameters))
    found = exact_auc(test.labels, np.concatenate(scores))
    assert found is not None  # the test rows have clicks
    return found


def summed(inverse: NDArray[np.int64], grads: Floats) -> Floats:
    """Gradients of the gathered rows added up by distinct row."""
    order = np.argsort(inverse, kind="stable")
    starts = np.flatnonzero(np.diff(inverse[order], prepend=-1))
    return np.add.reduceat(grads.reshape(-1, w.DIM)[order], starts, axis=0)


def accuracies(args: argparse.Namespace) -> dict[str, Any]:
    """Test AUC by way and seed, and each way's mean loss against `now`."""
    found: dict[str, list[float]] = {way: [] for way in ("now", *WAYS)}
    for seed in args.seeds:
        network = build_network(lambda: build(w.DENSE, w.SLOTS * w.DIM, w.HIDDEN), seed)
        step = TrainStep(network, batch_size=args.batch_size, dense=w.DENSE, width=w.SLOTS * w.DIM)
        count = args.rows // args.batch_size // args.trainers * args.trainers
        batches = [batch(args.batch_size, seed, _TRAINING, i) for i in range(count)]
        data = Numbered.of([*batches, batch(args.test_rows, seed, _TEST, 0)])
        for way in found:
            found[way].append(test_auc(way, seed, args.trainers, data, step))
    lost = {
        way: statistics.mean(a - b for a, b in zip(found["now"], found[way], strict=True))
        for way in WAYS
    }
    return {"test": found, "lost": lost}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=512, help="of the AUC's runs")
    parser.add_argument("--trainers", type=int, default=4, help="of the AUC's runs")
    parser.add_argument("--rows", type=int, default=200_000, help="trained for an AUC")
    parser.add_argument("--test-rows", type=int, default=50_000, help="held out")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--parts", nargs="+", default=["traffic", "auc"], help="default: both")
    args = parser.parse_args()
    result = {}
    if "traffic" in args.parts:
        result["traffic"] = {
            f"batch {size}, {trainers} trainers": traffic(size, trainers, HOTTEST)
            for size in (512, 4096)
            for trainers in (2, 4)
        }
    if "auc" in args.parts:
        result["auc"] = accuracies(args)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
