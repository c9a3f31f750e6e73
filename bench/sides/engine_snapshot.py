"""Snapshots while pulls go on: how long one takes to begin, how fast it is written, what it costs.

`measure` fills the fields `snapshot_*` and `pull_slowdown_during_snapshot` of
bench/results/engine.json; alone, `python -m bench.sides.engine_snapshot [ROWS]` prints them. The
blocks are made and thrown away: what is measured is the engine, not a disk.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

from ps_service import _native

ROWS, DIM, PARTITIONS, KEYS = 10_000_000, 16, 1024, 100_000
ROUNDS, UNDISTURBED_SECONDS = 5, 1.0


def make_shard(rows: int) -> _native.SparseShard:
    """`rows` rows of the benchmark's table: dim 16, float32, adagrad."""
    table = _native.TableConfig(
        name="t",
        dim=DIM,
        optimizer="adagrad",
        optimizer_params={},
        initializer="uniform",
        initializer_params={},
    )
    shard = _native.SparseShard([table], partitions=PARTITIONS, seed=1)
    for start in range(0, rows, 500_000):
        keys = np.arange(start, min(start + 500_000, rows), dtype=np.uint64)
        shard.pull(np.array([len(keys)], dtype=np.uint32), keys, insert=True)
    return shard


def measure(shard: _native.SparseShard, rows: int, rounds: int = ROUNDS) -> dict[str, float]:
    """Medians over `rounds` snapshots, each beside a time of undisturbed pulls.

    snapshot_start_ms: of begin_snapshot. snapshot_mrows_s: millions of rows a second made into
    blocks by one thread while another one pulls. pull_slowdown_during_snapshot: speed of the pulls
    meanwhile, as a part of the undisturbed one. snapshot_cpu_ns: CPU time of the writer per row,
    which does not depend on what else the machine does.
    """
    random = np.random.default_rng(0)
    requests = [random.integers(0, rows, KEYS).astype(np.uint64) for _ in range(16)]
    counts = np.array([KEYS], dtype=np.uint32)

    def pulls_per_second(go_on: Callable[[float], bool]) -> float:
        start = time.perf_counter()
        done = 0
        while done == 0 or go_on(time.perf_counter() - start):
            shard.pull(counts, requests[done % len(requests)], insert=False)
            done += 1
        return done / (time.perf_counter() - start)

    results: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        results.setdefault(name, []).append(value)

    for number in range(rounds):
        undisturbed = pulls_per_second(lambda seconds: seconds < UNDISTURBED_SECONDS)
        start = time.perf_counter()
        snapshot = shard.begin_snapshot(number)
        note("snapshot_start_ms", 1e3 * (time.perf_counter() - start))
        over = threading.Event()

        def write(held: _native.Snapshot = snapshot, over: threading.Event = over) -> None:
            start, cpu = time.perf_counter(), time.thread_time()
            for partition in range(PARTITIONS):
                held.dump(partition)
            note("snapshot_mrows_s", rows / 1e6 / (time.perf_counter() - start))
            note("snapshot_cpu_ns", 1e9 * (time.thread_time() - cpu) / rows)
            held.commit()
            over.set()

        writer = threading.Thread(target=write)
        writer.start()
        meanwhile = pulls_per_second(lambda _, over=over: not over.is_set())
        writer.join()
        note("pull_slowdown_during_snapshot", meanwhile / undisturbed)
    return {name: statistics.median(values) for name, values in results.items()}


if __name__ == "__main__":
    wanted = int(float(sys.argv[1])) if len(sys.argv) > 1 else ROWS
    print(json.dumps(measure(make_shard(wanted), wanted), indent=1))
