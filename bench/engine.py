"""`make bench-engine`: the sparse engine beside what bounds it and what it replaces.

Four processes, one after the other, each of which measures its sides in turn and reports medians:
the C++ benchmark of the kernels and of eviction (ps_service/native/bench), the planner and W2
beside TensorFlow (sides/engine_tensorflow.py), and snapshots (sides/engine_snapshot.py). Writes
`bench/results/engine.json`, prints a table.
What each figure means, and what was expected of it: bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BUILD = ROOT / "build" / "bench"
SNAPSHOT_SIDE = HERE / "sides" / "engine_snapshot.py"
Figures = dict[str, float]

# Ratio -> (numerator, denominator, least value that the engine is to reach).
RATIOS: dict[str, tuple[str, str, float]] = {
    "pull_ratio": ("pull_mkeys", "limit_pull_mkeys", 0.85),
    "push_ratio": ("push_mkeys", "limit_push_mkeys", 0.75),
    "insert_ratio": ("insert_mkeys", "limit_pull_mkeys", 0.35),
    "pull_2t_speedup": ("pull_mkeys_2t", "pull_wall_mkeys", 1.7),
    "push_2t_speedup": ("push_mkeys_2t", "push_wall_mkeys", 1.7),
    "speedup_vs_unordered_map": ("pull_mkeys", "unordered_map_mkeys", 8.0),
    "planner_speedup_vs_tf": ("planner_mids", "tf_unique_partition_mids", 3.0),
    "w2_vs_tf": ("w2_mkeys", "w2_tf_mkeys", 4.0),
    "pull_ratio_zipf": ("pull_mkeys_zipf", "limit_pull_mkeys_zipf", 0.0),
    "push_ratio_zipf": ("push_mkeys_zipf", "limit_push_mkeys_zipf", 0.0),
}
LEAST = {name: least for name, (_, _, least) in RATIOS.items() if least} | {
    "evict_rss_drop": 0.6,
    "pull_slowdown_during_snapshot": 0.7,  # speed during a snapshot over undisturbed
}


def call(command: list[str]) -> str:
    """Standard output of a command, which must succeed."""
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr[-4000:]}")
    return done.stdout


def build() -> Path:
    """The C++ benchmark, built with the flags of the extension."""
    call(["cmake", "-S", ".", "-B", str(BUILD), "-DEMBERMESH_BUILD_BENCH=ON"])
    call(["cmake", "--build", str(BUILD), "--target", "engine_bench", "-j", "2"])
    return BUILD / "ps_service" / "native" / "engine_bench"


def measure(rows: int, rounds: int) -> Figures:
    native = str(build())
    side = str(HERE / "sides" / "engine_tensorflow.py")
    figures: Figures = json.loads(call([native, "speed", str(rows), str(rounds)]))
    figures |= json.loads(call([native, "evict", str(rows)]))
    figures |= json.loads(call([native, "tables", str(rounds)]))
    beside_tf = call([sys.executable, side, "--rows", str(rows), "--rounds", str(rounds)])
    figures |= json.loads(beside_tf.splitlines()[-1])
    figures |= json.loads(call([sys.executable, str(SNAPSHOT_SIDE), str(rows)]))
    figures |= {name: figures[over] / figures[under] for name, (over, under, _) in RATIOS.items()}
    return {name: float(f"{value:.4g}") for name, value in sorted(figures.items())}


def show(figures: Figures) -> str:
    """One line per figure; those with a least value say whether they reach it."""
    lines = []
    for name, value in figures.items():
        least = LEAST.get(name)
        verdict = "" if least is None else f"  >= {least:g}: {'yes' if value >= least else 'NO'}"
        lines.append(f"{name:32} {value:10.4g}{verdict}\n")
    return "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=15, help="calls of every side")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    figures = measure(args.rows, args.rounds)
    machine = {
        "cpus": os.cpu_count(),
        "processor": platform.machine(),
        "load_before": round(load_before, 2),  # above 0: others took part of the machine
    }
    setup = {"rows": args.rows, "rounds": args.rounds, "machine": machine}
    target = HERE / "results" / "engine.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(figures | setup, indent=1) + "\n")
    sys.stdout.write(show(figures) + f"written to {target.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
