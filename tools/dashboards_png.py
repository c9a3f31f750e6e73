"""`make dashboards-png`: runs two jobs on a cluster of its own under a real Prometheus, then draws
every dashboard from the same queries that Grafana would ask, one picture each.

For looking at: an empty panel, a wrong unit or a legend of twenty lines is seen at once. Knows the
dashboards only by tools/dashboards.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib import ticker
from matplotlib.figure import Figure

from embermesh.client import Client
from embermesh.cluster import LocalCluster
from embermesh.processes import free_port
from tests.fixtures.kubernetes_gateway import kubernetes_gateway
from tests.fixtures.prometheus_server import Prometheus, configuration, prometheus
from tools.dashboards import ALL
from tools.grafana import Dashboard, Panel

WATCHED_SECONDS = 90.0
STEP_SECONDS = 1.0
_DAY = 86_400.0  # seconds
_START_SECONDS = 120.0
Line = tuple[str, list[tuple[float, float]]]  # name, (seconds since the start, value)
_JOBS: dict[str, dict[str, Any]] = {
    "ads": {
        "training": {"mode": "hybrid", "batch_size": 256, "seed": 1},
        "resources": {"sparse_ps": 2, "dense_ps": 1, "trainers": 2},
    },
    "feed": {
        "training": {"mode": "sync", "batch_size": 128, "seed": 2},
        "resources": {"sparse_ps": 2, "dense_ps": 1, "trainers": 1},
    },
}


def main() -> int:
    """0, or 1 when a panel shows nothing."""
    parser = argparse.ArgumentParser(prog="python -m tools.dashboards_png", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--seconds", type=float, default=WATCHED_SECONDS, help="of watching")
    arguments = parser.parse_args()
    program = shutil.which("prometheus")
    if program is None:
        sys.stderr.write("prometheus is missing (run `make setup`)\n")
        return 1
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="embermesh-dashboards-") as scratch:
        empty = _watch(program, Path(scratch), arguments.folder, arguments.seconds)
    for title in empty:
        sys.stderr.write(f"nothing to see in {title}\n")
    return 1 if empty else 0


def _watch(program: str, scratch: Path, folder: Path, seconds: float) -> list[str]:
    """Draws what two jobs look like after `seconds`; titles of empty panels."""
    cluster = LocalCluster(scratch / "cluster")
    try:
        state = cluster.up(port=free_port())
        ours = f"127.0.0.1:{state.port}", f"127.0.0.1:{state.checkpoint_metrics_port}"
        database = state.redis_url.removesuffix("/0") + "/1"
        with (
            kubernetes_gateway(scratch / "kubernetes", database) as second,
            prometheus(program, scratch / "prometheus", configuration(*ours, second)) as server,
        ):
            start = time.time()
            with Client(state.url) as client:
                for name, sections in _JOBS.items():
                    client.submit(_spec(name, scratch, sections))
            _until(lambda: len(server.query("embermesh_trainer_auc > 0")) == 3)
            threading.Event().wait(seconds)
            end = time.time()
            cluster.down()  # drawing needs the CPUs
            return [title for d in ALL for title in draw(d, server, folder, start, end)]
    finally:
        cluster.down()


def _spec(name: str, scratch: Path, sections: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "model": {"name": "deepfm", "hidden": [32, 16]},
        "data": {"source": "synthetic://criteo?rows=100000000"},
        "features": {
            "dense": "I1..I13",
            "sparse": {
                "C1..C26": {"dim": 8, "encode": "id", "eviction": {"lru": {"rows": 30_000}}}
            },
        },
        "checkpoint": {"to": f"file://{scratch / 'checkpoints'}", "every": "10s", "keep": 2},
        "autoscale": {
            "trainers": {"min": sections["resources"]["trainers"], "max": 2},
            "sparse_ps": {"min": 2, "max": 2},
            "window": "20s",
        },
        **sections,
    }


def _until(look: Callable[[], bool]) -> None:
    end, idle = time.monotonic() + _START_SECONDS, threading.Event()
    while not look():
        if time.monotonic() > end:
            raise SystemExit(f"the jobs did not train within {_START_SECONDS:.0f} s")
        idle.wait(0.5)


def draw(
    dashboard: Dashboard, server: Prometheus, folder: Path, start: float, end: float
) -> list[str]:
    """One picture of the time from `start` to `end`; titles of panels without a line."""
    empty = []
    heights = [1.6 if all(p.stat for p in row.panels) else 3.6 for row in dashboard.rows]
    figure = Figure(figsize=(18, sum(heights) + 0.5), layout="constrained")
    figure.suptitle(f"{dashboard.title}: {dashboard.text} Seconds since the start.", fontsize=14)
    parts = figure.subfigures(len(dashboard.rows), 1, height_ratios=heights, squeeze=False)
    for row, (part,) in zip(dashboard.rows, parts, strict=True):
        part.suptitle(row.title, x=0.01, ha="left", fontsize=12, weight="bold")
        axes = part.subplots(1, len(row.panels), squeeze=False)[0]
        for panel, axis in zip(row.panels, axes, strict=True):
            lines = _lines(panel, server, start, end)
            axis.set_title(panel.title, fontsize=10)
            (_draw_number if panel.stat else _draw_lines)(panel, lines, axis)
            if not lines:
                empty.append(f"{dashboard.uid}: {panel.title}")
    figure.savefig(folder / f"{dashboard.uid}.png", dpi=80)
    return empty


def _lines(panel: Panel, server: Prometheus, start: float, end: float) -> list[Line]:
    lines: list[Line] = []
    for query in panel.queries:
        for series in server.query_range(query.of_everything(), start, end, STEP_SECONDS):
            points = [(float(t) - start, float(v)) for t, v in series["values"] if v != "NaN"]
            if points:
                lines.append((query.name(series["metric"]), points))
    return lines


def _draw_number(panel: Panel, lines: list[Line], axis: Any) -> None:
    axis.axis("off")
    newest = [points[-1][1] for _, points in lines]
    text = with_unit(newest[0], panel) if newest else "no data"
    axis.text(0.5, 0.5, text, ha="center", va="center", fontsize=24, transform=axis.transAxes)


def _draw_lines(panel: Panel, lines: list[Line], axis: Any) -> None:
    below: dict[float, float] = {}  # stacked: time -> height so far
    for name, points in lines:
        times = [t for t, _ in points]
        floor = [below.get(t, 0.0) if panel.stacked else 0.0 for t in times]
        values = [v + base for (_, v), base in zip(points, floor, strict=True)]
        (line,) = axis.plot(times, values, label=name, linewidth=1.5)
        if panel.stacked:
            below.update(zip(times, values, strict=True))
            axis.fill_between(times, floor, values, alpha=0.3, color=line.get_color())
    axis.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: with_unit(value, panel)))
    if panel.top is not None:
        axis.set_ylim(0, panel.top)
    elif not any(value for _, points in lines for _, value in points):
        axis.set_ylim(0, 1)  # nothing but zeros is no reason for values below
    axis.grid(alpha=0.3)
    axis.tick_params(labelsize=8)
    if lines:
        axis.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.08))


def with_unit(value: float, panel: Panel) -> str:
    """The value as Grafana writes it in the panel's unit."""
    digits = 1 if panel.decimals is None else panel.decimals
    if panel.unit == "percentunit":
        return f"{value:.{digits}%}"
    if panel.unit == "s" and abs(value) < 1:
        return f"{value * 1e3:.3g} ms"
    if panel.unit == "s" and abs(value) >= _DAY:
        return f"{value / _DAY:.3g} d"
    if panel.unit == "none":
        return f"{value:.{digits}f}"
    base, names = (
        (1024.0, ("", "Ki", "Mi", "Gi")) if panel.unit == "bytes" else (1e3, ("", "K", "M"))
    )
    place = 0
    while abs(value) >= base and place + 1 < len(names):
        value, place = value / base, place + 1
    unit = {"bytes": "B", "s": "s", "reqps": "/s"}.get(panel.unit, "")
    number = f"{value:.3g}" if abs(value) < 1_000 else f"{value:.0f}"
    return f"{number} {names[place]}{unit}".strip()


if __name__ == "__main__":
    raise SystemExit(main())
