"""Dashboards and rules ask for metrics and labels that our processes declare, and an alert's link
leads to its section of the runbook. That every query answers is for tests/e2e.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, cast

import prometheus_client
import pytest
import yaml

from gateway.kubernetes.metrics import ApiMetrics
from gateway.metrics import GatewayMetrics
from ps_service.server.metrics import DenseMetrics, SparseMetrics
from services.checkpoint.metrics import CheckpointMetrics
from services.kit import expiry, usage
from services.kit.rpc_metrics import RpcMetrics
from tests.data import ROOT
from tools.dashboards import ALL
from trainer_service.metrics import TrainerMetrics

FOLDER = ROOT / "deploy" / "grafana" / "dashboards"
RULES_FOLDER = ROOT / "deploy" / "prometheus"
FILES = sorted(FOLDER.glob("*.json"))
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((RULES_FOLDER / "rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
RECORDED = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
ALERTS = {rule["alert"] for rule in RULES if "alert" in rule}
PANELS = [pytest.param(p, id=f"{d.uid}: {p.title}") for d in ALL for p in d.panels]
# Put on by Prometheus: from http_sd, its own configuration and, for histograms, the client library.
ADDED_LABELS = {"job", "role", "rank", "service", "le"}
OF_PROMETHEUS = {"up", "ALERTS"}
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
_NAME = re.compile(r"[a-z_]+(?::\w+:\w+)|\b(?:embermesh|process)_\w+|\bup\b|\bALERTS\b")


def declared() -> dict[str, set[str]]:
    """Series name -> labels, of everything our packages declare."""
    registry = prometheus_client.CollectorRegistry()
    kinds = (
        GatewayMetrics,
        CheckpointMetrics,
        SparseMetrics,
        DenseMetrics,
        TrainerMetrics,
        RpcMetrics,
        ApiMetrics,
    )
    for kind in kinds:
        kind(registry)
    usage.expose(registry)
    expiry.expose(registry, lambda: expiry.Ends(0, 0))
    series: dict[str, set[str]] = {name: set() for name in OF_PROMETHEUS}
    for family in registry.collect():
        if family.name.startswith("process_"):
            series |= {sample.name: set[str]() for sample in family.samples}
    for collector in set(registry._collector_to_names):
        if not hasattr(collector, "_labelnames"):
            continue
        for metric in cast(Any, collector).describe():
            for suffix in SUFFIXES[metric.type]:
                series[metric.name + suffix] = set(collector._labelnames)
    return series


SERIES = declared()


def names(expression: str) -> set[str]:
    """Series the expression asks for; string literals and label names are left out."""
    text = re.sub(r'"[^"]*"', '""', expression)
    text = re.sub(r"\bby \([^)]*\)", "", text)
    return set(_NAME.findall(text))


def labels_of(name: str) -> set[str]:
    if name in RECORDED:
        grouped = re.search(r"\bby \(([^)]*)\)", RECORDED[name])
        return {g.strip() for g in grouped[1].split(",")} if grouped else set()
    return SERIES[name]


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_asks_for_declared_metrics_and_labels(panel: Any) -> None:
    assert panel.queries
    for query in panel.queries:
        asked = names(query.expr)
        assert asked
        assert asked <= SERIES.keys() | RECORDED.keys()
        labels = set().union(*(labels_of(n) for n in asked)) | ADDED_LABELS
        grouped = {
            g.strip() for by in re.findall(r"by \(([^)]*)\)", query.expr) for g in by.split(",")
        }
        shown = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
        assert grouped | shown <= labels
        if grouped:  # a label that tells series apart and isn't shown gives two lines one name
            assert shown == grouped - {"le"}


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.get("alert") or r["record"])
def test_a_rule_asks_for_declared_metrics(rule: dict[str, Any]) -> None:
    asked = names(rule["expr"])
    assert asked
    assert asked <= SERIES.keys() | RECORDED.keys()


def test_rates_are_of_counters_and_quantiles_of_buckets() -> None:
    expressions = [q.expr for d in ALL for p in d.panels for q in p.queries]
    expressions += [rule["expr"] for rule in RULES]
    for expression in expressions:
        for name in re.findall(r"\b(?:rate|increase)\((\w+)", expression):
            assert name.endswith(("_total", "_bucket", "_sum", "_count")), expression
        if "histogram_quantile" in expression:
            assert "_bucket" in expression
            assert re.search(r"by \(le\b", expression), expression


def test_every_dashboard_is_a_file_and_every_file_a_dashboard() -> None:
    assert [f.stem for f in FILES] == sorted(d.uid for d in ALL)
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["grafana"]
    home = compose["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (FOLDER / Path(home).name).exists()


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_panels_do_not_overlap(file: Path) -> None:
    panels = json.loads(file.read_text())["panels"]
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        grid = panel["gridPos"]
        for x in range(grid["x"], grid["x"] + grid["w"]):
            for y in range(grid["y"], grid["y"] + grid["h"]):
                assert (x, y) not in cells, panel["title"]
                cells.add((x, y))
                assert x < 24
    assert len({p["id"] for p in panels}) == len(panels)


def test_the_main_signals_are_there() -> None:
    asked = {n for d in ALL for p in d.panels for q in p.queries for n in names(q.expr)}
    asked |= {n for record in asked & RECORDED.keys() for n in names(RECORDED[record])}
    assert asked >= {
        "embermesh_trainer_auc",
        "embermesh_trainer_loss",
        "embermesh_trainer_samples_total",
        "embermesh_trainer_phase_seconds_bucket",
        "embermesh_trainer_staleness_steps_bucket",
        "embermesh_trainer_lag",
        "embermesh_sparse_rows",
        "embermesh_sparse_bytes",
        "embermesh_sparse_hit_ratio",
        "embermesh_sparse_hot_key_share",
        "embermesh_rpc_seconds_bucket",
        "embermesh_checkpoint_seconds_bucket",
    }


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, id=f"{rule['alert']} {rule['labels']['severity']}")
        for rule in RULES
        if "alert" in rule
    ],
)
def test_an_alert_leads_to_its_section_of_the_runbook(rule: dict[str, Any]) -> None:
    alert = rule["alert"]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["runbook_url"] == f"docs/operations.md#{alert.lower()}"
    sections = re.split(r"^### ", (ROOT / "docs" / "operations.md").read_text(), flags=re.M)
    (section,) = [s for s in sections if s.startswith(f"{alert}\n")]
    for part in ("**Means.**", "**Look first.**", "**Do.**"):
        assert section.count(part) == 1, part


def test_the_runbook_has_no_section_of_an_alert_that_is_gone() -> None:
    runbook = (ROOT / "docs" / "operations.md").read_text()
    assert set(re.findall(r"^### (Embermesh\w+)$", runbook, flags=re.M)) == ALERTS


@pytest.mark.parametrize(
    "command",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "rules.yml"),
        ("test", "rules", "rules_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_is_content(promtool: str, command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [promtool, *command], cwd=RULES_FOLDER, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested() -> None:
    tested = yaml.safe_load((RULES_FOLDER / "rules_test.yml").read_text())["tests"]
    firing = {
        case["alertname"]
        for test in tested
        for case in test.get("alert_rule_test", [])
        if case["exp_alerts"]
    }
    assert firing == ALERTS


def test_the_log_warns_of_a_certificate_when_the_alert_does() -> None:
    (rule,) = [
        rule
        for rule in RULES
        if rule.get("alert") == "EmbermeshCertificateExpires"
        and rule["labels"]["severity"] == "warning"
    ]
    assert rule["expr"].endswith(f" < {expiry.WARN_DAYS * 86_400}")
