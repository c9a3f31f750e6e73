"""What `make bench-quality` compares: data sets, sides, and the JobSpec of each. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.workload import DIM, HIDDEN

ROOT = Path(__file__).resolve().parents[2]
STALENESS, MERGE_STEPS = 4, 8  # training.staleness and training.k
ACCUMULATOR = 0.1  # initial, of every side's Adagrad: it moves the AUC more than any choice of mode
SPARSE_PS, DENSE_PS = 2, 1
Document = dict[str, Any]


@dataclass(frozen=True)
class Side:
    """One way to train."""

    title: str
    mode: str  # training.mode; of Keras, which has none, the one that it is to equal
    trainers: int


SIDES = {
    "keras": Side("Keras, in memory", "sync", 1),
    "sync_1": Side("sync, 1 trainer", "sync", 1),
    "sync": Side("sync, 4 trainers", "sync", 4),
    "hybrid": Side("hybrid, 4 trainers", "hybrid", 4),
    "kstep": Side("kstep, 4 trainers", "kstep", 4),
    "async": Side("async, 4 trainers", "async", 4),
}
BASELINE, COMPARED = "sync", ("hybrid", "kstep", "async")


@dataclass(frozen=True)
class Data:
    """One data set. `bound` is the largest gap to sync that hybrid and kstep may have."""

    batch_size: int  # of each trainer
    bound: float
    example: str = ""  # file in examples/ whose data and features these are; "": W1


DATA = {
    "w1": Data(512, 0.002),
    "criteo": Data(256, 0.003, "criteo.yaml"),
    "trivago": Data(256, 0.003, "trivago.yaml"),
}


def document(data: str, side: str, seed: int, *, quick: bool) -> Document:
    """The job of `side` on `data`, as fields of a JobSpec. `quick` takes one epoch, of a tenth of
    W1.

    Rows and their order are those of one trainer: W1's depend on seed and batch size only, files
    are read from the start.
    """
    chosen, way = DATA[data], SIDES[side]
    job = _w1(quick) if not chosen.example else _example(chosen.example)
    before = job.get("training", {})
    job["training"] = {
        "mode": way.mode,
        "batch_size": chosen.batch_size,
        "epochs": 1 if quick else before.get("epochs", 1),
        "seed": seed,
        "staleness": STALENESS,
        "k": MERGE_STEPS,
        # As far ahead as the bound allows, so that it is the bound which is judged.
        "pipeline": {"depth": 0 if way.mode == "sync" else STALENESS},
    }
    job["optimizers"] = {
        "sparse": {"adagrad": {"lr": 0.05, "initial_accumulator": ACCUMULATOR}},
        "dense": {"adam": {"lr": 0.001}},
    }
    job["resources"] = {"sparse_ps": SPARSE_PS, "dense_ps": DENSE_PS, "trainers": way.trainers}
    job["max_restarts"] = 0  # a run that was disturbed is no result
    return job


def _w1(quick: bool) -> Document:
    rows, held_out = (200_000, 50_000) if quick else (2_000_000, 200_000)
    return {
        "name": "quality-w1",
        "model": {"name": "deepfm", "hidden": list(HIDDEN)},
        "data": {"source": f"synthetic://criteo?rows={rows}&holdout={held_out}"},
        "features": {"dense": "I1..I13", "sparse": {"C1..C26": {"dim": DIM, "encode": "id"}}},
    }


def _example(name: str) -> Document:
    job: Document = yaml.safe_load((ROOT / "examples" / name).read_text())
    del job["checkpoint"]
    path = Path(job["data"]["source"].removeprefix("file://"))
    job["data"]["source"] = f"file://{(ROOT / path).resolve()}"
    return job
