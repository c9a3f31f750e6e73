"""The pictures of `make bench-quality`: AUC by samples and by side, and samples/s by side.

The AUC while training is that of each trainer's last 100,000 samples. Four trainers' windows reach
back four times as far as one's, so the two are drawn apart. A line is the mean over the seeds, the
band around it reaches from the lowest to the highest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bench.quality.cases import BASELINE, DATA, SIDES
from bench.quality.summary import Run

# Okabe and Ito's colours, which differ in every kind of colour vision; the lines differ by dashes
# too, for print without any.
_COLOURS = dict(
    zip(SIDES, ("#000000", "#56b4e9", "#0072b2", "#009e73", "#d55e00", "#cc79a7"), strict=True)
)
_DASHES: dict[str, Any] = dict(
    zip(SIDES, ("--", "-", "-", (0, (5, 1)), "-.", (0, (1, 1))), strict=True)
)
_PANEL = (5.6, 3.9)  # inches
_LEAST = 0.05  # the share of the samples below which a progressive AUC is noise
_POINTS = 200  # of a line


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
        _test_auc(grid[2][column], name, result[name])
    figure.savefig(folder / "quality-auc.png", dpi=110)
    figure = Figure((_PANEL[0] * len(names), _PANEL[1]), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        _rates(axes, name, result[name])
    figure.savefig(folder / "quality-rate.png", dpi=110)


def band(runs: Sequence[Run]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Samples (p,) that all runs have reached, and each run's AUC there (runs, p), by straight
    lines between its own points. Empty for runs that have no point in common.
    """
    curves = [
        [(n, auc) for _, n, auc in r["curve"] if auc is not None and n >= _LEAST * r["samples"]]
        for r in runs
    ]
    if not all(curves):
        return np.zeros(0), np.zeros((len(runs), 0))
    first = max(points[0][0] for points in curves)
    last = min(points[-1][0] for points in curves)
    samples = np.linspace(first, last, _POINTS) if first <= last else np.zeros(0)
    return samples, np.array([np.interp(samples, *np.array(points).T) for points in curves])


def _curves(axes: Axes, title: str, runs: Sequence[Run]) -> None:
    for side in SIDES:
        own = [r for r in runs if r["side"] == side]
        if not own:
            continue
        samples, aucs = band(own)
        colour = _COLOURS[side]
        axes.plot(
            samples,
            aucs.mean(axis=0),
            color=colour,
            linestyle=_DASHES[side],
            linewidth=1.6,
            label=SIDES[side].title,
        )
        axes.fill_between(samples, aucs.min(0), aucs.max(0), color=colour, alpha=0.2, linewidth=0)
    axes.set_title(f"{title}: AUC while training")
    axes.set_xlabel("samples trained, all trainers together")
    axes.set_ylabel("AUC of the last 100,000 samples\nof a trainer, before each was trained")
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    _legend(axes)
    _plain(axes)


def _test_auc(axes: Axes, name: str, part: dict[str, Any]) -> None:
    sides = list(part["sides"])
    seeds = {len(found["auc"]) for found in part["sides"].values()}
    for at, side in enumerate(sides):
        aucs = list(part["sides"][side]["auc"].values())
        axes.plot([at] * len(aucs), aucs, "o", color=_COLOURS[side], alpha=0.7)
        axes.plot(at, part["sides"][side]["auc_mean"], "_", color=_COLOURS[side], markersize=24)
    if BASELINE in part["sides"]:
        least = part["sides"][BASELINE]["auc_mean"] - part["bound"]
        label = f"bound of hybrid and kstep: {SIDES[BASELINE].title}, less {part['bound']}"
        axes.axhline(least, color="#555555", linestyle=":", linewidth=1.2, label=label)
        _legend(axes)
    axes.set_xlim(-0.5, len(sides) - 0.5)
    axes.set_xticks(range(len(sides)), [_short(side) for side in sides])
    many = f"{max(seeds)} seeds and mean" if max(seeds) > 1 else "one seed"
    axes.set_title(f"{name}: {part['test_rows']:,} held-out rows, {many}")
    axes.set_ylabel("test AUC")
    _plain(axes)


def _rates(axes: Axes, name: str, part: dict[str, Any]) -> None:
    rates = {s: f["samples_per_second"] for s, f in part["sides"].items()}
    rates = {side: rate for side, rate in rates.items() if rate is not None}
    bars = axes.bar(
        [_short(side) for side in rates], list(rates.values()), color=[_COLOURS[s] for s in rates]
    )
    axes.bar_label(bars, fmt="{:,.0f}", fontsize=9, padding=2)
    axes.set_title(f"{name}: batch {part['batch_size']} per trainer")
    axes.set_ylabel("samples/s, all trainers together")
    axes.yaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    axes.margins(y=0.1)
    _plain(axes)


def _short(side: str) -> str:
    """Name of a side in two lines."""
    return SIDES[side].title.replace(", ", "\n")


def _legend(axes: Axes) -> None:
    """Below the panel, where no line can be; none where nothing has a name."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(
            frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=9
        )


def _plain(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
