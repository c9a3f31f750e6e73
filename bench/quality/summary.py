"""From single runs to means, spreads and gaps. Pure."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from typing import Any

from bench.quality.cases import (
    ACCUMULATOR,
    BASELINE,
    COMPARED,
    DATA,
    DENSE_PS,
    MERGE_STEPS,
    SIDES,
    SPARSE_PS,
    STALENESS,
)

Run = dict[str, Any]  # key, data, side, seed, job, load, auc, logloss, samples, curve, …
Curve = list[tuple[float, int, float | None]]  # seconds, samples, progressive AUC
_STARTING = 0.1  # the share of the samples before which a rate is not taken: programs still compile


def rate(curve: Sequence[Sequence[Any]]) -> float | None:
    """Samples per second from the first point with a tenth of the samples to the last one; None for
    a run too short to tell.
    """
    last = curve[-1] if curve else (0.0, 0, None)
    first = next((p for p in curve if p[1] >= _STARTING * last[1]), last)
    seconds = last[0] - first[0]
    return (last[1] - first[1]) / seconds if seconds > 0 else None


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """`{data}.sides.{side}` and `{data}.gap.{mode}`, settings and the machine's load.

    Raises ValueError when sides of one data set did not train and judge the same number of rows.
    """
    result: dict[str, Any] = {
        name: _of_data(name, [r for r in runs if r["data"] == name])
        for name in DATA
        if any(r["data"] == name for r in runs)
    }
    loads = [load for r in runs for load in r["load"]]
    return result | {
        "settings": {
            "staleness": STALENESS,
            "k": MERGE_STEPS,
            "initial_accumulator": ACCUMULATOR,
            "sparse_ps": SPARSE_PS,
            "dense_ps": DENSE_PS,
            "trainers": {name: side.trainers for name, side in SIDES.items()},
        },
        "machine": {
            "cpus": os.cpu_count(),
            "load_mean": round(statistics.mean(loads), 1),
            "load_max": round(max(loads), 1),
        },
    }


def _of_data(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    counts = {(r["samples"], r["test_rows"]) for r in runs}
    if len(counts) != 1:
        raise ValueError(f"{name}: sides differ in (training samples, held-out rows): {counts}")
    ((samples, test_rows),) = counts
    aucs: dict[str, dict[int, float]] = {
        side: {r["seed"]: r["auc"] for r in runs if r["side"] == side} for side in SIDES
    }
    gaps: dict[str, dict[int, float]] = {
        mode: {s: aucs[BASELINE][s] - a for s, a in aucs[mode].items() if s in aucs[BASELINE]}
        for mode in COMPARED
    }
    return {
        "batch_size": DATA[name].batch_size,
        "training_samples": samples,
        "test_rows": test_rows,
        "bayes_auc": runs[0]["bayes_auc"],
        "bound": DATA[name].bound,
        "sides": {
            side: _of_side([r for r in runs if r["side"] == side]) for side in SIDES if aucs[side]
        },
        # Both means are over the seeds that both have.
        "gap": {m: statistics.mean(g.values()) if g else None for m, g in gaps.items()},
        "gap_by_seed": gaps,
    }


def _of_side(runs: Sequence[Run]) -> dict[str, Any]:
    aucs = [r["auc"] for r in runs]
    rates = [found for r in runs if (found := rate(r["curve"])) is not None]
    return {
        "auc_mean": statistics.mean(aucs),
        "auc_spread": max(aucs) - min(aucs),
        "auc": {r["seed"]: r["auc"] for r in runs},
        "logloss_mean": statistics.mean(r["logloss"] for r in runs),
        "samples_per_second": statistics.median(rates) if rates else None,
    }


def table(result: dict[str, Any]) -> str:
    """For the terminal."""
    lines = [f"{'':10} {'side':20} {'AUC':>7} {'spread':>7} {'gap':>8} {'samples/s':>10}"]
    for name in (name for name in DATA if name in result):
        part = result[name]
        for side, found in part["sides"].items():
            gap, speed = part["gap"].get(side), found["samples_per_second"]
            lines.append(
                f"{name:10} {SIDES[side].title:20} {found['auc_mean']:7.4f} "
                f"{found['auc_spread']:7.4f} {'' if gap is None else f'{gap:+.4f}':>8} "
                f"{'' if speed is None else f'{speed:,.0f}':>10}"
            )
        over = [m for m in ("hybrid", "kstep") if (part["gap"][m] or 0.0) > part["bound"]]
        if over:
            lines.append(f"{name}: above the bound of {part['bound']}: {', '.join(over)}")
    return "\n".join(lines)
