"""A Grafana dashboard as a value, and the JSON that Grafana provisions.

A dashboard is rows of panels, a panel is queries with a unit; places, ids and data source follow
from that. Knows nothing of our metrics: tools/dashboards.py says what is shown.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WIDTH = 24  # columns of Grafana's grid
HEIGHT = 8  # of a panel, in rows of the grid
STAT_HEIGHT = 4
TAG = "embermesh"
ALL_VALUES = ".+"  # what `$name` stands for while everything is chosen
_SCHEMA = 39  # Grafana 10 and later read it
_SOURCE = {"type": "prometheus", "uid": "prometheus"}  # provisioning/datasources


@dataclasses.dataclass(frozen=True)
class Query:
    """A PromQL expression and the name of each of its series, e.g. `{{job}} {{rank}}`."""

    expr: str
    legend: str

    def of_everything(self) -> str:
        """The expression as Grafana asks it while all values of each variable are chosen."""
        return re.sub(r'=~"\$\w+"', f'=~"{ALL_VALUES}"', self.expr)

    def name(self, labels: Mapping[str, str]) -> str:
        """What the legend says of the series with these labels."""
        return re.sub(r"\{\{(\w+)\}\}", lambda m: labels.get(m[1], ""), self.legend).strip()


@dataclasses.dataclass(frozen=True)
class Panel:
    """One chart, or with `stat` the newest value as a number. `unit` is Grafana's name of it.

    `top` is the end of the value axis where that is known; `stacked` fills the series one upon the
    other.
    """

    title: str
    text: str
    queries: Sequence[Query]
    unit: str = "short"
    decimals: int | None = None
    top: float | None = None
    stacked: bool = False
    stat: bool = False


@dataclasses.dataclass(frozen=True)
class Row:
    """Panels of one width, side by side below a heading."""

    title: str
    panels: Sequence[Panel]


@dataclasses.dataclass(frozen=True)
class Variable:
    """A choice above the panels: the values of a label, as `$name` in the queries."""

    name: str
    label: str
    metric: str


@dataclasses.dataclass(frozen=True)
class Dashboard:
    """`uid` is its address and its file's name."""

    uid: str
    title: str
    text: str
    rows: Sequence[Row]
    variable: Variable | None = None

    @property
    def panels(self) -> Iterator[Panel]:
        """All of them in reading order."""
        return (panel for row in self.rows for panel in row.panels)


def render(dashboard: Dashboard) -> str:
    """The dashboard's JSON file."""
    document = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.text,
        "tags": [TAG],
        "schemaVersion": _SCHEMA,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,  # one cross-hair for all panels
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "links": [_link_to_the_others()],
        "templating": {"list": [_variable(dashboard.variable)] if dashboard.variable else []},
        "panels": list(_placed(dashboard.rows)),
    }
    return json.dumps(document, indent=1) + "\n"


def _placed(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for row in rows:
        number += 1
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "gridPos": place}
        y += 1
        width = WIDTH // len(row.panels)
        height = STAT_HEIGHT if all(panel.stat for panel in row.panels) else HEIGHT
        for column, panel in enumerate(row.panels):
            number += 1
            place = {"x": column * width, "y": y, "w": width, "h": height}
            yield {"id": number, **_panel(panel), "gridPos": place}
        y += height


def _panel(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.decimals is not None:
        defaults["decimals"] = panel.decimals
    if panel.top is not None:
        defaults |= {"min": 0, "max": panel.top}
    options: dict[str, Any]
    if panel.stat:
        options = {
            "colorMode": "value",
            "graphMode": "area",
            "reduceOptions": {"calcs": ["lastNotNull"]},
        }
    else:
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        defaults["custom"] = {
            "lineWidth": 1 if panel.stacked else 2,
            "fillOpacity": 40 if panel.stacked else 5,
            "showPoints": "never",
            "stacking": stacking,
        }
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
            }
            for place, query in enumerate(panel.queries)
        ],
    }


def _variable(variable: Variable) -> dict[str, Any]:
    values = f"label_values({variable.metric}, {variable.name})"
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": values, "refId": variable.name},
        "refresh": 2,  # whenever the time range changes: jobs come and go
        "multi": True,
        "includeAll": True,
        "allValue": ALL_VALUES,
        "current": {"text": "All", "value": "$__all"},
        "sort": 2,
    }


def _link_to_the_others() -> dict[str, Any]:
    return {
        "type": "dashboards",
        "title": "Embermesh",
        "tags": [TAG],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }
