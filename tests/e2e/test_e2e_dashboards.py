"""Every query of every dashboard and rule, asked of a live Prometheus that scrapes a running job:
each must answer with data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from embermesh.client import Client
from embermesh.cluster import LocalCluster
from tests.e2e.waiting import until
from tests.fixtures.kubernetes_gateway import kubernetes_gateway
from tests.fixtures.prometheus_server import DEPLOY, Prometheus, configuration
from tools.dashboards import ALL

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

PANELS = [
    pytest.param(panel, id=f"{dashboard.uid}: {panel.title}")
    for dashboard in ALL
    for panel in dashboard.panels
]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
RECORDS = [rule["record"] for rule in RULES if "record" in rule]
ALERTS = [pytest.param(rule["expr"], id=rule["alert"]) for rule in RULES if "alert" in rule]
ADAPTER = [
    pytest.param(rule, id=rule["name"]["as"])
    for rules in yaml.safe_load((DEPLOY / "adapter.yml").read_text())["rules"].values()
    if isinstance(rules, list)
    for rule in rules
]
_COMPARISON = re.compile(r" (==|!=|>=|<=|>|<) ")
_PATIENCE = 30.0  # seconds for a series to come


@pytest.fixture(scope="module")
def live(
    cluster: LocalCluster,
    start_prometheus: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Prometheus]:
    """Prometheus beside a job that runs until the last test: mode sync, so that both barriers are
    passed, with checkpoints, eviction and an autoscaler that watches. What a local cluster has not,
    certificates and a Kubernetes API, a second gateway has.
    """
    folder, state = tmp_path_factory.mktemp("live"), cluster.state()
    assert state is not None
    ours = f"127.0.0.1:{state.port}", f"127.0.0.1:{state.checkpoint_metrics_port}"
    database = state.redis_url.removesuffix("/0") + "/1"
    with (
        kubernetes_gateway(folder / "kubernetes", database) as second,
        start_prometheus(folder, configuration(*ours, second)) as server,
        Client(state.url) as client,
    ):
        job = client.submit(_spec(folder))
        until(
            lambda: server.query("embermesh_checkpoint_bytes > 0"),
            seconds=90,
            what=f"a checkpoint of {job.id} in Prometheus",
        )
        yield server
        view = client.get(job.id)
        assert not view.state.final, f"the job ended while it was watched: {view.error}"
        assert view.generation == 1, "the job was restarted while it was watched"
        client.cancel(job.id)


def _spec(folder: Path) -> dict[str, Any]:
    sparse = {"C1..C6": {"dim": 4, "encode": "id", "eviction": {"lru": {"rows": 2_000}}}}
    return {
        "name": "watched",
        "model": {"name": "deepfm", "hidden": [16]},
        "data": {"source": "synthetic://criteo?rows=100000000"},
        "features": {"dense": "I1..I13", "sparse": sparse},
        "training": {"mode": "sync", "batch_size": 256},
        "resources": {"sparse_ps": 2, "dense_ps": 1, "trainers": 1},
        "checkpoint": {"to": f"file://{folder / 'checkpoints'}", "every": "2s", "keep": 1},
        "autoscale": {
            "trainers": {"max": 1},
            "sparse_ps": {"min": 2, "max": 2},
            "window": "2s",
        },
    }


def _finite(series: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [s for s in series if math.isfinite(float(s["value"][1]))]


def _demand(server: Prometheus, expression: str) -> list[dict[str, Any]]:
    return until(
        lambda: _finite(server.query(expression)), seconds=_PATIENCE, what=f"data of {expression}"
    )


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_shows_data(live: Prometheus, panel: Any) -> None:
    for query in panel.queries:
        series = _demand(live, query.of_everything())
        names = [query.name(s["metric"]) for s in series]
        assert all(names), f"{query.expr}: a series without a name"
        assert len(set(names)) == len(names), f"{query.expr}: two series of one name in {names}"


@pytest.mark.parametrize("record", RECORDS)
def test_a_recorded_series_is_there(live: Prometheus, record: str) -> None:
    _demand(live, record)


@pytest.mark.parametrize("expression", ALERTS)
def test_an_alert_has_something_to_look_at(live: Prometheus, expression: str) -> None:
    """With `bool` a comparison answers 0 instead of nothing while all is well."""
    asked, count = _COMPARISON.subn(r" \1 bool ", expression)
    assert count > 0
    _demand(live, asked)


@pytest.mark.parametrize("rule", ADAPTER)
def test_an_adapters_metric_has_data(live: Prometheus, rule: dict[str, Any]) -> None:
    """As prometheus-adapter fills the templates in; the pods' labels come from Kubernetes."""
    series = rule["seriesQuery"].partition("{")[0]
    _demand(live, series)
    query = rule["metricsQuery"].replace("<<.Series>>", series)
    query = query.replace("<<.LabelMatchers>>", "").replace("<<.GroupBy>>", "instance")
    assert "<<" not in query
    values = [float(s["value"][1]) for s in _demand(live, query)]
    wanted = {"embermesh_wanted_trainers": [1.0], "embermesh_wanted_sparse_ps": [2.0]}
    assert values == wanted.get(rule["name"]["as"], values)


def test_prometheus_reads_every_process_and_evaluates_every_rule(live: Prometheus) -> None:
    targets = live.get("/api/v1/targets")["activeTargets"]
    assert {t["labels"].get("role") or t["labels"]["service"] for t in targets} == {
        "gateway",
        "checkpoint",
        "trainer",
        "sparse-ps",
        "dense-ps",
    }
    assert [t["lastError"] for t in targets if t["lastError"]] == []
    rules = [r for g in live.get("/api/v1/rules")["groups"] for r in g["rules"]]
    assert len(rules) == len(RULES)
    assert [(r["name"], r.get("lastError")) for r in rules if r["health"] != "ok"] == []


def test_nothing_is_alarmed_about_a_job_that_is_well(live: Prometheus) -> None:
    assert live.query('ALERTS{alertstate="firing"}') == []
