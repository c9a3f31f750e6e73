"""The benchmark workload (W1): its rows as Parquet files, which every side reads, and its job.

13 dense floats, 26 slots of 10 to 2,000,000 values (Zipf 1.05), labels of a planted click model:
the rows are those of our own synthetic source. They are generated once and kept between runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from services.api.spec import JobSpec, validate
from trainer_service.sources.synthetic import CARDINALITIES, CriteoModel

SLOTS, DENSE, DIM, HIDDEN, SEED = 26, 13, 16, (256, 128, 64), 20261129
WIDE_ROWS = 100_000_000  # values of all slots together in the wide variant of the workload
ACCUMULATOR = 0.1  # initial, of every side's Adagrad: it moves the AUC more than any other choice
_TRAINING, _TEST = 0, 1  # random streams
_STRIPE = 4096  # rows generated at once, whatever the batch size
_GROUP = 10  # stripes in a row group


@dataclass(frozen=True)
class Rows:
    """Samples in memory."""

    dense: NDArray[np.float32]  # (n, DENSE)
    keys: NDArray[np.uint64]  # (n, SLOTS)
    labels: NDArray[np.float32]  # (n,)

    def batches(self, size: int) -> Iterator[Rows]:
        """In order; the last one may be smaller."""
        for at in range(0, len(self.labels), size):
            end = at + size
            yield Rows(self.dense[at:end], self.keys[at:end], self.labels[at:end])


@dataclass(frozen=True)
class Data:
    """The workload's files in `folder`."""

    folder: Path
    train_rows: int
    test_rows: int

    def train(self, rows: int | None = None) -> Path:
        """File of the first `rows` training rows, made if it isn't there; default: all."""
        count = self.train_rows if rows is None else rows
        return self._file(f"train-plain-{count}.parquet", count, _TRAINING)

    def test(self) -> Path:
        """File of the held-out rows."""
        return self._file(f"test-plain-{self.test_rows}.parquet", self.test_rows, _TEST)

    def wide(self, rows: int) -> Path:
        """File of `rows` training rows of a model of WIDE_ROWS embedding rows: every slot has as
        many times more values.
        """
        wide = CARDINALITIES * WIDE_ROWS // CARDINALITIES.sum()
        return self._file(f"wide-plain-{rows}.parquet", rows, _TRAINING, CriteoModel(wide))

    def _file(self, name: str, rows: int, stream: int, model: CriteoModel | None = None) -> Path:
        path = self.folder / name
        if path.exists():
            return path
        self.folder.mkdir(parents=True, exist_ok=True)
        model, unfinished = model or CriteoModel(), path.with_suffix(".tmp")
        stripes = range(-(-rows // _STRIPE))
        writer = None
        for first in stripes[::_GROUP]:
            group = pa.Table.from_batches(
                _required(model.rows(min(_STRIPE, rows - i * _STRIPE), (SEED, stream, i))[0])
                for i in stripes[first : first + _GROUP]
            )
            # As docs/formats.md advises for files to train from.
            writer = writer or pq.ParquetWriter(
                unfinished, group.schema, compression="none", use_dictionary=False
            )
            writer.write_table(group)
        if writer is not None:
            writer.close()
        unfinished.replace(path)
        return path


def _required(rows: pa.RecordBatch) -> pa.RecordBatch:
    """`rows` without the possibility that a value is missing."""
    schema = pa.schema([field.with_nullable(False) for field in rows.schema])
    return pa.RecordBatch.from_arrays(rows.columns, schema=schema)


def read(path: Path) -> Rows:
    """A file's rows."""
    table = pq.read_table(path)
    dense = np.stack([table[f"I{i + 1}"].to_numpy() for i in range(DENSE)], 1)
    keys = np.stack([table[f"C{i + 1}"].to_numpy().view(np.uint64) for i in range(SLOTS)], 1)
    return Rows(dense, keys, table["label"].to_numpy().astype(np.float32))


def job(source: str, batch_size: int, **parts: Any) -> JobSpec:
    """The workload's job on one trainer and one of each server: Adagrad 0.05 for rows, Adam 1e-3
    for the network. `parts` are further top-level fields of the JobSpec, such as resources.
    """
    training = {
        "mode": "hybrid",
        "batch_size": batch_size,
        "seed": SEED,
        **parts.pop("training", {}),
    }
    data = {"source": source, **parts.pop("data", {})}
    return validate(
        {
            "name": "bench",
            "model": {"name": "bench.network:create", "hidden": list(HIDDEN)},
            "data": data,
            "features": {"dense": "I1..I13", "sparse": {"C1..C26": {"dim": DIM, "encode": "id"}}},
            "training": training,
            "optimizers": {
                "sparse": {"adagrad": {"lr": 0.05, "initial_accumulator": ACCUMULATOR}},
                "dense": {"adam": {"lr": 0.001}},
            },
            **parts,
        }
    )


def arguments(description: str | None) -> argparse.Namespace:
    """Flags every side takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--batch-size", type=int, default=4096, help="rows per step")
    parser.add_argument("--steps", type=int, default=40, help="measured steps")
    parser.add_argument("--warm-up", type=int, default=5, help="steps before the measurement")
    parser.add_argument("--full", action="store_true", help="all training rows, and the AUC")
    parser.add_argument("--train-rows", type=int, default=2_000_000, help="of the full pass")
    parser.add_argument("--test-rows", type=int, default=200_000, help="held out")
    parser.add_argument("--xla", action="store_true", help="TensorFlow sides: compile by XLA")
    parser.add_argument("--depth", type=int, help="ours: batches whose rows are read ahead")
    parser.add_argument("--placement", default="remote", help="ours: remote or embedded shard")
    parser.add_argument(
        "--cache", type=Path, default=Path(".cache/bench"), help="folder of the workload's files"
    )
    return parser.parse_args()


def data(args: argparse.Namespace) -> Data:
    """The workload's files as the flags name them."""
    return Data(args.cache.absolute(), args.train_rows, args.test_rows)


def rows(args: argparse.Namespace) -> int | None:
    """Training rows of a run; None: all."""
    return None if args.full else (args.warm_up + args.steps) * args.batch_size
