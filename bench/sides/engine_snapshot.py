"""Snapshots while pulls go on: how long one takes to begin, how fast it is written, what it costs.

`measure` fills the fields `snapshot_*` and `pull_slowdown_*` of bench/results/engine.json; alone,
`engine_snapshot.py [ROWS]` prints them. The blocks are made and thrown away: what is measured is
the engine, not a disk.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from ps_service import _native

ROWS, DIM, PARTITIONS, KEYS = 10_000_000, 16, 1024, 100_000
ROUNDS, UNDISTURBED_SECONDS = 5, 1.0


class Watch:
    """Seconds of the calling thread since it was made."""

    def __init__(self) -> None:
        self._start, self._queued = time.perf_counter(), self._queue()

    def wall(self) -> float:
        """By the clock."""
        return time.perf_counter() - self._start

    def own(self) -> float:
        """Without the time in which the thread could have run and got no core."""
        return self.wall() - (self._queue() - self._queued)

    @staticmethod
    def _queue() -> float:
        schedstat = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        return int(schedstat.read_text().split()[1]) / 1e9 if schedstat.exists() else 0.0


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

    snapshot_start_ms: of begin_snapshot. snapshot_mrows_s: millions of rows made into blocks in a
    second of the writing thread while another one pulls. pull_slowdown_during_snapshot: speed of
    the pulls meanwhile, as a part of the undisturbed one. Both threads' time is that in which they
    ran or waited for each other, without the time in which others had the core (which depends on
    the machine); the plain clock gives the fields `_wall`.
    """
    random = np.random.default_rng(0)
    requests = [random.integers(0, rows, KEYS).astype(np.uint64) for _ in range(16)]
    counts = np.array([KEYS], dtype=np.uint32)

    def pull_while(go_on: Callable[[float], bool]) -> tuple[float, float]:
        """Seconds per pull: without those in which others had the core, and by the clock."""
        watch = Watch()
        done = 0
        while done == 0 or go_on(watch.wall()):
            shard.pull(counts, requests[done % len(requests)], insert=False)
            done += 1
        return watch.own() / done, watch.wall() / done

    results: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        results.setdefault(name, []).append(value)

    for number in range(rounds):
        undisturbed = pull_while(lambda seconds: seconds < UNDISTURBED_SECONDS)
        start = time.perf_counter()
        snapshot = shard.begin_snapshot(number)
        note("snapshot_start_ms", 1e3 * (time.perf_counter() - start))
        over = threading.Event()

        def write(held: _native.Snapshot = snapshot, over: threading.Event = over) -> None:
            watch = Watch()
            for partition in range(PARTITIONS):
                held.dump(partition)
            note("snapshot_mrows_s", rows / 1e6 / watch.own())
            note("snapshot_mrows_s_wall", rows / 1e6 / watch.wall())
            held.commit()
            over.set()

        writer = threading.Thread(target=write)
        writer.start()
        meanwhile = pull_while(lambda _, over=over: not over.is_set())
        writer.join()
        note("pull_slowdown_during_snapshot", undisturbed[0] / meanwhile[0])
        note("pull_slowdown_during_snapshot_wall", undisturbed[1] / meanwhile[1])
    return {name: statistics.median(values) for name, values in results.items()}


if __name__ == "__main__":
    wanted = int(float(sys.argv[1])) if len(sys.argv) > 1 else ROWS
    print(json.dumps(measure(make_shard(wanted), wanted), indent=1))
