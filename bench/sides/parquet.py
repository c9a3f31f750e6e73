"""What a Parquet file's form costs a trainer: CPU time of reading, decoding and transforming it.

Rows of the benchmark workload, written in several forms and read by the source that a job reads.
Time is the CPU's of all threads for one batch, the median over the rounds, the forms in turn.
Prints one JSON line: milliseconds of CPU a batch, and the bytes of a row in the file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pyarrow as pa
import pyarrow.parquet as pq

from bench import workload as w
from trainer_service.sources import EndOfData, open_training
from trainer_service.sources.synthetic import CriteoModel

BATCH, SEED = 4096, 11
PLAIN: dict[str, Any] = {"compression": "none", "use_dictionary": False}
FORMS: dict[str, tuple[bool, dict[str, Any]]] = {  # whether nothing may be missing, how written
    "snappy, dictionaries, groups of 4096": (False, {"row_group_size": BATCH}),
    "snappy, dictionaries": (False, {}),
    "zstd, dictionaries": (False, {"compression": "zstd"}),
    "uncompressed, dictionaries": (False, {"compression": "none"}),
    "lz4, plain": (False, {**PLAIN, "compression": "lz4"}),
    "uncompressed, plain": (False, PLAIN),
    "uncompressed, plain, required": (True, PLAIN),
}


def write(folder: Path, rows: int) -> dict[str, Path]:
    """One file for each form."""
    stripes = [CriteoModel().rows(BATCH, (SEED, 0, i))[0] for i in range(rows // BATCH)]
    table = pa.Table.from_batches(stripes)
    required = table.cast(pa.schema([field.with_nullable(False) for field in table.schema]))
    paths = {form: folder / f"{number}.parquet" for number, form in enumerate(FORMS)}
    for form, (strict, options) in FORMS.items():
        options = {"row_group_size": 10 * BATCH, **options}
        pq.write_table(required if strict else table, paths[form], **options)
    return paths


def milliseconds(path: Path) -> float:
    """CPU time of a batch from the file, all threads."""
    source = open_training(w.job(path.as_uri(), BATCH), rank=0, trainers=1)
    batches, begin = 0, time.process_time()
    try:
        while source.next_batch(1.0) is not None:
            batches += 1
    except EndOfData:
        return 1e3 * (time.process_time() - begin) / batches
    finally:
        source.close()
    raise RuntimeError(f"{path} fell silent")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=60 * BATCH)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = write(Path(folder), args.rows)
        rounds = [
            {form: milliseconds(path) for form, path in paths.items()} for _ in range(args.rounds)
        ]
        found = {
            form: {
                "ms_per_batch": round(statistics.median(each[form] for each in rounds), 2),
                "bytes_per_row": round(path.stat().st_size / args.rows),
            }
            for form, path in paths.items()
        }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
