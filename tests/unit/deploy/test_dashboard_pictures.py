"""The script that draws dashboards: units as Grafana writes them, a picture each, empty panels by
name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tests.fixtures.prometheus_server import Prometheus
from tools import dashboards_png
from tools.grafana import Dashboard, Panel, Query, Row


@pytest.mark.parametrize(
    ("value", "unit", "decimals", "text"),
    [
        (0.256, "percentunit", None, "25.6%"),
        (0.25, "percentunit", 0, "25%"),
        (0.0123, "s", None, "12.3 ms"),
        (75.0, "s", None, "75 s"),
        (1536.0, "bytes", None, "1.5 KiB"),
        (1000.0, "bytes", None, "1000 B"),
        (3.0 * 2**30, "bytes", None, "3 GiB"),
        (21_400.0, "short", None, "21.4 K"),
        (2.0, "reqps", None, "2 /s"),
        (0.76543, "none", 4, "0.7654"),
    ],
)
def test_values_are_written_in_their_unit(
    value: float, unit: str, decimals: int | None, text: str
) -> None:
    panel = Panel("p", "t", [], unit=unit, decimals=decimals)
    assert dashboards_png.with_unit(value, panel) == text


class Answers:
    """A Prometheus that knows one expression."""

    def __init__(self, expression: str) -> None:
        self.expression = expression

    def query_range(
        self, expression: str, start: float, end: float, step: float
    ) -> list[dict[str, Any]]:
        if expression != self.expression:
            return []
        values = [[start, "1"], [start + step, "NaN"], [end, "3"]]
        return [{"metric": {"job": job}, "values": values} for job in ("a", "b")]


def test_a_dashboard_becomes_a_picture_and_empty_panels_are_named(tmp_path: Path) -> None:
    full = [Query('x{job=~"$job"}', "{{job}}")]
    empty = [Query("y", "none")]
    panels = [Panel("Full", "t", full, stacked=True, top=5), Panel("Empty", "t", empty)]
    numbers = [Panel("Number", "t", full, stat=True), Panel("No number", "t", empty, stat=True)]
    dashboard = Dashboard("uid", "Title", "Text.", [Row("One", panels), Row("Two", numbers)])
    server = cast(Prometheus, Answers('x{job=~".+"}'))
    found = dashboards_png.draw(dashboard, server, tmp_path, 100.0, 110.0)
    assert found == ["uid: Empty", "uid: No number"]
    assert (tmp_path / "uid.png").read_bytes().startswith(b"\x89PNG")
