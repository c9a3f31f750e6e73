"""`make bench`: samples/s of our trainer, of plain Keras and of the dense step alone, as ratios.

Ours is measured three times: as it is, without reading rows ahead, and with its shard embedded.

The sides run as processes of their own, in turn, for several rounds; a ratio is taken per round and
the median over the rounds is reported, so that a slow minute of the machine hits all sides alike.
Writes `bench/results/train.json` and prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_OURS = ["ours", "--steps", "100", "--warm-up", "10"]
SIDES = {  # name -> program and flags
    "dense_only": ["dense_only", "--steps", "60", "--warm-up", "5"],
    "ours": _OURS,
    "ours_depth_0": [*_OURS, "--depth", "0"],
    "ours_embedded": [*_OURS, "--placement", "embedded"],
    "keras_plain": ["keras_plain", "--steps", "8", "--warm-up", "2"],
}


def run_side(program: str, flags: list[str]) -> float:
    """Samples per second of one run of a side."""
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, str(HERE / "sides" / f"{program}.py"), *flags],
        capture_output=True, text=True, timeout=600, env=env, cwd=HERE.parent, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"bench side {program} failed:\n{done.stderr[-4000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["samples_per_second"])


def summarise(rates: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, ranges and per-round ratios."""
    ours = rates["ours"]
    ratio = {
        side: statistics.median(a / b for a, b in zip(ours, rates[side], strict=True))
        for side in rates
    }
    return {
        "ours_sps": statistics.median(ours),
        "dense_only_sps": statistics.median(rates["dense_only"]),
        "keras_sps": statistics.median(rates["keras_plain"]),
        "ours_ratio": ratio["dense_only"],
        "vs_keras": ratio["keras_plain"],
        "vs_depth_0": ratio["ours_depth_0"],
        "embedded_sps": statistics.median(rates["ours_embedded"]),
        "embedded_vs_remote": 1 / ratio["ours_embedded"],
        "rounds": {side: [round(v) for v in values] for side, values in rates.items()},
        "machine": {
            "cpus": os.cpu_count(),
            "processor": platform.machine(),
            "python": platform.python_version(),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="runs of every side")
    args = parser.parse_args()
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(args.rounds):
        for side, (program, *flags) in SIDES.items():
            rates[side].append(run_side(program, flags))
            sys.stdout.write(
                f"round {number + 1}/{args.rounds}  {side:12} {rates[side][-1]:10,.0f} samples/s\n"
            )
            sys.stdout.flush()
    result = summarise(rates)
    target = HERE / "results" / "train.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n")
    sys.stdout.write(
        f"\nmedian samples/s: ours {result['ours_sps']:,.0f}, "
        f"dense only {result['dense_only_sps']:,.0f}, plain Keras {result['keras_sps']:,.0f}\n"
        f"ours / dense only = {result['ours_ratio']:.2f}, "
        f"ours / plain Keras = {result['vs_keras']:.1f}\n"
        f"ours / ours without reading ahead = {result['vs_depth_0']:.2f}, "
        f"embedded / ours = {result['embedded_vs_remote']:.2f}\n"
        f"written to {target.relative_to(HERE.parent)}\n"
    )


if __name__ == "__main__":
    main()
