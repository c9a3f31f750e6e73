"""Batches of the benchmark workload (W1) for the sides that don't run our trainer.

They are kept as a file between runs. The rows come from our own synthetic source, so every side
trains on the very same samples.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.api.spec import JobSpec, validate
from trainer_service.sources import EndOfData, open_training

SLOTS, DENSE, DIM, HIDDEN, SEED = 26, 13, 16, (256, 128, 64), 20261129


def job(
    rows: int,
    batch_size: int,
    trainers: int = 1,
    depth: int | None = None,
    placement: str = "remote",
) -> JobSpec:
    """DeepFM, 13 dense floats, 26 slots, dim 16, Adagrad 0.05 and Adam 1e-3, no evaluation; `depth`
    batches' rows are read ahead.
    """
    return validate(
        {
            "name": "bench",
            "model": {"name": "deepfm", "hidden": list(HIDDEN)},
            "data": {"source": f"synthetic://criteo?rows={rows}&holdout=0"},
            "features": {"dense": "I1..I13", "sparse": {"C1..C26": {"dim": DIM, "encode": "id"}}},
            "training": {
                "mode": "hybrid",
                "batch_size": batch_size,
                "seed": SEED,
                "pipeline": {"depth": depth},
            },
            "resources": {"placement": placement, "dense_ps": 1, "trainers": trainers},
        }
    )


def arguments(description: str) -> argparse.Namespace:
    """Flags every side takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--batch-size", type=int, default=4096, help="rows per step")
    parser.add_argument("--steps", type=int, default=40, help="measured steps")
    parser.add_argument("--warm-up", type=int, default=5, help="steps before the measurement")
    parser.add_argument("--depth", type=int, help="ours: batches whose rows are read ahead")
    parser.add_argument("--placement", default="remote", help="ours: remote or embedded shard")
    parser.add_argument(
        "--cache", type=Path, default=Path(".cache/bench"), help="folder of the generated batches"
    )
    return parser.parse_args()


def batches(
    args: argparse.Namespace,
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.uint64], NDArray[np.float32]]]:
    """(dense (B, 13), keys (B, 26), labels (B,)) of warm-up and measured steps, in order."""
    count = args.warm_up + args.steps
    path = args.cache / f"w1-{SEED}-{args.batch_size}-{count}.npz"
    if not path.exists():
        _generate(path, count, args.batch_size)
    with np.load(path) as stored:
        dense, keys, labels = stored["dense"], stored["keys"], stored["labels"]
    yield from zip(dense, keys, labels, strict=True)


def _generate(path: Path, count: int, batch_size: int) -> None:
    source = open_training(job(count * batch_size, batch_size), rank=0, trainers=1, resume=None)
    dense, keys, labels = [], [], []
    try:
        while True:
            batch = source.next_batch(timeout=60)
            if batch is None:
                raise RuntimeError("the synthetic source gave nothing for 60 s")
            dense.append(batch.dense)
            keys.append(batch.keys.reshape(SLOTS, batch.samples).T)
            labels.append(batch.labels)
    except EndOfData:
        source.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, dense=np.stack(dense), keys=np.stack(keys), labels=np.stack(labels))
