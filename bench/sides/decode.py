"""Rows/s that one core turns into batches, by format: Criteo text, packed and JSON messages.

From bytes in memory (or a file, for text) to `Batch`: labels, dense floats and keys, by the code
that a job runs. Time is the CPU's of all threads, so the rates are per core and other work on the
machine takes cache but no time. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from embermesh.produce import pack_messages
from services.api.manifest import PositionEntry
from services.api.spec import JobSpec, validate
from trainer_service.decode import open_rows
from trainer_service.decode_message import decoder
from trainer_service.sources import EndOfData, Source, open_training
from trainer_service.sources._bad_rows import BadRows
from trainer_service.sources._message_source import MessageSource
from trainer_service.sources._messages import MessageQueue
from trainer_service.transform import Transform

BATCH, ROWS_PER_MESSAGE = 4096, 256


def write_text(path: Path, rows: int) -> None:
    """Criteo's form: label, 13 numbers of which some are missing, 26 hashes of 8 hex digits."""
    rng = np.random.default_rng(7)
    labels = rng.integers(0, 2, rows)
    numbers = rng.geometric(0.05, (rows, 13)) - 1
    missing = rng.random((rows, 13)) < 0.2
    sizes = np.geomspace(10, 2_000_000, 26).astype(np.int64)
    keys = (rng.zipf(1.3, (rows, 26)) % sizes) * 2_654_435_761 % 2**32
    with path.open("w") as out:
        for i in range(rows):
            dense = ("" if gone else str(n) for n, gone in zip(numbers[i], missing[i], strict=True))
            hashes = (f"{key:08x}" for key in keys[i])
            out.write("\t".join((str(labels[i]), *dense, *hashes)) + "\n")


def job(path: Path) -> JobSpec:
    """The features of the Criteo example, read from a file."""
    return validate(
        {
            "name": "decode",
            "model": {"name": "deepfm"},
            "data": {"source": f"file://{path}", "format": "criteo-tsv"},
            "features": {"dense": {"I1..I13": {"log": True}}, "sparse": {"C1..C26": {"dim": 16}}},
            "training": {"batch_size": BATCH},
        }
    )


class Memory:
    """A stream of one partition whose messages are in memory; see `MessageSource`."""

    def __init__(self, values: Sequence[bytes]) -> None:
        self._values, self._next = values, 0

    def ranges(self) -> dict[int, tuple[int, int]]:
        return {0: (0, len(self._values))}

    def seek(self, offsets: Mapping[int, int]) -> None:
        self._next = offsets.get(0, 0)

    def poll(self, _seconds: float, most: int) -> dict[int, list[tuple[int, bytes | None]]]:
        first, self._next = self._next, min(self._next + most, len(self._values))
        return {0: list(enumerate(self._values[first : self._next], first))}

    def next_offset(self, _partition: int) -> int:
        return self._next

    def high_water(self, _partition: int) -> int | None:
        return len(self._values)

    def stop_reading(self, _partition: int) -> None:
        pass

    def close(self) -> None:
        pass


def message_source(spec: JobSpec, values: Sequence[bytes], message_format: str) -> MessageSource:
    """The source of a bounded Kafka job, with the broker left out."""
    bad = BadRows(0)
    start = PositionEntry(partition="memory-0", major=0, minor=0, end=len(values))
    rows = decoder(message_format, spec.features.columns())
    queue = MessageQueue("memory-0", start, len(values), rows, bad)
    return MessageSource(
        Memory(values), {0: queue}, Transform(spec.features), BATCH, bad,
        endless=False, poll_messages=512 if message_format == "json" else 16, total_samples=None,
    )  # fmt: skip


def rate(source: Source, rows: int) -> float:
    """Rows per second of CPU time from the first batch to the last."""
    begin, seen = time.process_time(), 0
    for samples in _batches(source):
        seen += samples
    seconds = time.process_time() - begin
    source.close()
    if seen != rows:
        raise RuntimeError(f"{seen} of {rows} rows came")
    return rows / seconds


def _batches(source: Source) -> Iterator[int]:
    while True:
        try:
            batch = source.next_batch(1.0)
        except EndOfData:
            return
        yield 0 if batch is None else batch.samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=131_072)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clicks.tsv"
        write_text(path, args.rows)
        spec = job(path)
        blocks = [b.rows for b in open_rows(spec.data.source, "criteo-tsv", None).blocks(0, print)]
        packed = {
            form: [v for block in blocks for _, v in pack_messages(block, form, ROWS_PER_MESSAGE)]
            for form in ("arrow", "json")
        }
        rates: dict[str, list[float]] = {"criteo-tsv": [], "arrow": [], "json": []}
        for _ in range(args.rounds):
            rates["criteo-tsv"].append(rate(open_training(spec, rank=0, trainers=1), args.rows))
            for form, values in packed.items():
                rates[form].append(rate(message_source(spec, values, form), args.rows))
    medians = {form: round(statistics.median(found)) for form, found in rates.items()}
    sys.stdout.write(json.dumps({"rows_per_core_second": medians}) + "\n")


if __name__ == "__main__":
    main()
