"""The pictures of `make bench-quality`: AUC by samples and by side, and samples/s by side.

The AUC while training is that of each trainer's last 100,000 samples. Four trainers' windows reach
back four times as far as one's, so the two are drawn apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.quality.cases import DATA, SIDES
from bench.quality.summary import Run

_COLOURS = dict(
    zip(SIDES, ("#7f7f7f", "#56b4e9", "#1f77b4", "#2ca02c", "#d95f02", "#9467bd"), strict=True)
)
_PANEL = (5.2, 3.6)  # inches
_LEAST = 0.05  # the share of the samples below which a progressive AUC is noise


def draw(runs: Sequence[Run], result: dict[str, Any], folder: Path) -> None:
    """Writes quality-auc.png and quality-rate.png, a column or panel for each data set."""
    names = [name for name in DATA if name in result]
    figure = Figure((_PANEL[0] * len(names), 3 * _PANEL[1]), layout="constrained")
    grid = figure.subplots(3, len(names), squeeze=False)
    for column, name in enumerate(names):
        for row, trainers in enumerate((1, 4)):
            shown = [r for r in runs if r["data"] == name]
            shown = [r for r in shown if SIDES[r["side"]].trainers == trainers]
            _curves(grid[row][column], f"{name}, {trainers} trainer{'s'[: trainers - 1]}", shown)
        _test_auc(grid[2][column], result[name])
    figure.savefig(folder / "quality-auc.png", dpi=110)
    figure = Figure((_PANEL[0] * len(names), _PANEL[1]), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        _rates(axes, name, result[name])
    figure.savefig(folder / "quality-rate.png", dpi=110)


def _curves(axes: Axes, title: str, runs: Sequence[Run]) -> None:
    """Of the first seed: lines of several would hide each other."""
    seed = min((r["seed"] for r in runs), default=0)
    for run in (r for r in runs if r["seed"] == seed):
        least = _LEAST * run["samples"]
        points = [(n, auc) for _, n, auc in run["curve"] if auc is not None and n >= least]
        side = run["side"]
        axes.plot(
            [n for n, _ in points],
            [auc for _, auc in points],
            color=_COLOURS[side],
            linestyle="--" if side == "keras" else "-",
            label=SIDES[side].title,
        )
    axes.set_title(f"{title}: AUC while training, seed {seed}")
    axes.set_xlabel("samples")
    axes.set_ylabel("AUC of each sample before it was trained")
    axes.legend(frameon=False, loc="lower right")
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    _plain(axes)


def _test_auc(axes: Axes, part: dict[str, Any]) -> None:
    sides = list(part["sides"])
    for at, side in enumerate(sides):
        aucs = list(part["sides"][side]["auc"].values())
        axes.plot([at] * len(aucs), aucs, "o", color=_COLOURS[side], alpha=0.7)
        axes.plot(at, part["sides"][side]["auc_mean"], "_", color=_COLOURS[side], markersize=24)
    axes.set_xlim(-0.5, len(sides) - 0.5)
    axes.set_xticks(range(len(sides)), sides)
    axes.set_title(f"on {part['test_rows']:,} held-out rows: seeds and mean")
    axes.set_ylabel("test AUC")
    _plain(axes)


def _rates(axes: Axes, name: str, part: dict[str, Any]) -> None:
    rates = {s: f["samples_per_second"] for s, f in part["sides"].items()}
    rates = {side: rate for side, rate in rates.items() if rate is not None}
    bars = axes.bar(list(rates), list(rates.values()), color=[_COLOURS[s] for s in rates])
    axes.bar_label(bars, fmt="{:,.0f}", fontsize=8)
    axes.set_title(f"{name}: batch {part['batch_size']} per trainer")
    axes.set_ylabel("samples/s, all trainers")
    axes.yaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
