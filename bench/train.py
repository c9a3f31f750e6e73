"""`make bench-train`: our trainer beside TensorFlow on one workload; see README.md.

The sides run as processes of their own, in turn, for several rounds; a ratio is taken per round and
the median over the rounds is reported, so that a slow minute of the machine hits all sides alike.
One full pass of ours and of tuned TensorFlow gives AUC and memory, `sides/step_bytes.py` the bytes
of a step beside those of a model of 100 million rows, and the network bench (`net/run.py`) the
table of modes. Writes `bench/results/train.json` and prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SIDE_SECONDS = 1200
NETWORK, BYTES = "net/run", "sides/step_bytes"


@dataclass(frozen=True)
class Size:
    """How much of the workload is run; `steps` and `warm_up` are per side."""

    rounds: int
    batch_size: int
    train_rows: int
    test_rows: int
    ours: tuple[int, int]  # steps, warm-up
    tensorflow: tuple[int, int]
    keras: tuple[int, int]
    network: tuple[str, ...]  # flags
    bytes_steps: int


FULL = Size(5, 4096, 2_000_000, 200_000, (300, 50), (60, 5), (8, 2), (), 200)
QUICK = Size(
    1, 256, 12_800, 2_560, (12, 2), (6, 2), (2, 1), ("--steps", "240", "--batch-size", "64"), 20
)


def sides(size: Size) -> dict[str, list[str]]:
    """Name -> program and flags, in the order of a round."""
    ours, tensorflow = ["sides/ours", *_steps(size.ours)], _steps(size.tensorflow)
    return {
        "dense_graph": ["sides/dense_only", *tensorflow],
        "dense_xla": ["sides/dense_only", *tensorflow, "--xla"],
        "dense_micro": ["sides/dense_micro", *tensorflow],
        "embedded": [*ours, "--placement", "embedded"],
        "remote": ours,
        "tf_graph": ["sides/tf_tuned", *tensorflow],
        "tf_xla": ["sides/tf_tuned", *tensorflow, "--xla"],
        "keras": ["sides/keras_plain", *_steps(size.keras)],
    }


def _steps(counts: tuple[int, int]) -> list[str]:
    return ["--steps", str(counts[0]), "--warm-up", str(counts[1])]


def run_side(program: str, flags: Sequence[str]) -> dict[str, Any]:
    """What one run of a side says."""
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, str(HERE / f"{program}.py"), *flags],
        capture_output=True, text=True, timeout=SIDE_SECONDS, env=env, cwd=HERE.parent, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"bench side {program} failed:\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def summarise(
    rates: dict[str, list[float]], ours: dict[str, Any], tensorflow: dict[str, Any]
) -> dict[str, Any]:
    """Medians, ratios and ranges; `ours` and `tensorflow` are the full passes.

    Graph or XLA: the limit and tuned TensorFlow count with the variant of the better median. The
    dense part by our own step is shown beside them.
    """
    median = {side: statistics.median(values) for side, values in rates.items()}
    dense = max("dense_graph", "dense_xla", key=median.__getitem__)
    tuned = max("tf_graph", "tf_xla", key=median.__getitem__)

    def ratio(side: str, to: str) -> float:
        return statistics.median(a / b for a, b in zip(rates[side], rates[to], strict=True))

    return {
        "embedded_sps": median["embedded"],
        "remote_sps": median["remote"],
        "dense_only_sps": median[dense],
        "dense_micro_sps": median["dense_micro"],
        "tf_tuned_sps": median[tuned],
        "keras_sps": median["keras"],
        "embedded_ratio": ratio("embedded", dense),
        "remote_ratio": ratio("remote", dense),
        "vs_tf_tuned": ratio("embedded", tuned),
        "vs_keras": ratio("embedded", "keras"),
        "auc_ours": ours["auc"],
        "auc_tf": tensorflow["auc"],
        "rss_mb": ours["rss_mb"],
        "tf_rss_mb": tensorflow["rss_mb"],
        "full_pass_sps": {
            "embedded": ours["samples_per_second"],
            "tf_tuned": tensorflow["samples_per_second"],
        },
        "best": {"dense_only": dense, "tf_tuned": tuned},
        "rounds": {side: [round(v) for v in values] for side, values in rates.items()},
    }


def measure(size: Size, common: list[str]) -> dict[str, Any]:
    """All rounds, then the full passes."""
    programs = sides(size)
    rates: dict[str, list[float]] = {side: [] for side in programs}
    for number in range(size.rounds):
        for side, (program, *flags) in programs.items():
            rates[side].append(run_side(program, [*flags, *common])["samples_per_second"])
            _say(f"round {number + 1}/{size.rounds}  {side:12} {rates[side][-1]:10,.0f} samples/s")
    rows = ["--train-rows", str(size.train_rows), "--test-rows", str(size.test_rows)]
    ours = run_side("sides/ours", [*common, *rows, "--full", "--placement", "embedded"])
    tensorflow = run_side("sides/tf_tuned", [*common, *rows, "--full"])
    return summarise(rates, ours, tensorflow)


def report(result: dict[str, Any]) -> str:
    """The result for people."""
    lines = [
        f"{name:16} {result[name]:10,.0f}" for name in result if name.endswith(("_sps", "rss_mb"))
        if name != "full_pass_sps"
    ]  # fmt: skip
    ratios = ("embedded_ratio", "remote_ratio", "vs_tf_tuned", "vs_keras")
    lines += [f"{name:16} {result[name]:10.2f}" for name in ratios]
    lines += [f"{name:16} {result[name]:10.4f}" for name in ("auc_ours", "auc_tf")]
    lines += [
        f"bytes {name:11} {row['bytes_per_step']:10,.0f} a step, 1/{1 / row['bytes_ratio']:,.0f} "
        "of a model of 100 M rows"
        for name, row in result["bytes"].items()
    ]
    for mode, row in result["net"].items():
        lines.append(
            f"net {mode:12} {row['step_ms']:8.1f} ms, {row['bytes_per_step']:,.0f} bytes a step"
        )
    if result["net_skipped"]:
        lines.append(f"net: {result['net_skipped']}")
    return "\n".join(lines)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny: shows that it runs, no more")
    parser.add_argument("--rounds", type=int, help="runs of every side; default: 5, quick: 1")
    parser.add_argument("--cache", default=".cache/bench", help="folder of the workload's files")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "train.json")
    args = parser.parse_args()
    size = QUICK if args.quick else FULL
    if args.rounds:
        size = Size(**{**vars(size), "rounds": args.rounds})
    common = ["--batch-size", str(size.batch_size), "--cache", args.cache]
    result = measure(size, common)
    network = run_side(NETWORK, ["--cache", args.cache, *size.network])
    result |= {"net": network["modes"], "net_skipped": network["skipped"]}
    result |= run_side(BYTES, ["--cache", args.cache, "--steps", str(size.bytes_steps)])
    result["machine"] = {
        "cpus": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    _say(f"\n{report(result)}\nwritten to {args.out}")


if __name__ == "__main__":
    main()
