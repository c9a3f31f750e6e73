"""The Grafana dashboard asks for metrics and labels that our processes declare."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import prometheus_client
import pytest

from gateway.metrics import GatewayMetrics
from ps_service.server.metrics import DenseMetrics, SparseMetrics
from services.checkpoint.metrics import CheckpointMetrics
from services.kit.rpc_metrics import RpcMetrics
from tests.data import ROOT
from trainer_service.metrics import TrainerMetrics

DASHBOARD: dict[str, Any] = json.loads(
    (ROOT / "deploy" / "grafana" / "dashboards" / "embermesh.json").read_text()
)
PANELS = [p for p in DASHBOARD["panels"] if p["type"] != "row"]
# Put on by Prometheus: from http_sd and, for histograms, by the client library.
ADDED_LABELS = {"job", "role", "rank", "le"}
# prometheus_client.ProcessCollector, which every process of ours registers.
PROCESS_METRICS = {"process_resident_memory_bytes": set[str]()}
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


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
    )
    for kind in kinds:
        kind(registry)
    series = dict(PROCESS_METRICS)
    for collector in set(registry._collector_to_names):
        labels = set(getattr(collector, "_labelnames", ()))
        for metric in cast(Any, collector).describe():
            for suffix in SUFFIXES[metric.type]:
                series[metric.name + suffix] = labels
    return series


SERIES = declared()


@pytest.mark.parametrize("panel", PANELS, ids=lambda p: p["title"])
def test_a_panel_asks_for_declared_metrics_and_labels(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        names = set(re.findall(r"\b(?:embermesh|process)_\w+", target["expr"]))
        assert names
        assert names <= SERIES.keys()
        labels = set().union(*(SERIES[n] for n in names)) | ADDED_LABELS
        grouped = {
            g.strip() for by in re.findall(r"by \(([^)]*)\)", target["expr"]) for g in by.split(",")
        }
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert grouped | shown <= labels
        if grouped:
            assert shown <= grouped


def test_rates_are_of_counters_and_quantiles_of_buckets() -> None:
    expressions = [t["expr"] for p in PANELS for t in p["targets"]]
    for expression in expressions:
        for name in re.findall(r"(?:rate|increase)\((\w+)", expression):
            assert name.endswith(("_total", "_bucket", "_sum", "_count")), expression
        if "histogram_quantile" in expression:
            assert "_bucket" in expression
            assert re.search(r"by \(le\b", expression), expression


def test_panels_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        grid = panel["gridPos"]
        for x in range(grid["x"], grid["x"] + grid["w"]):
            for y in range(grid["y"], grid["y"] + grid["h"]):
                assert (x, y) not in cells, panel["title"]
                cells.add((x, y))
                assert x < 24
    assert len({p["id"] for p in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_main_signals_are_there() -> None:
    text = json.dumps(DASHBOARD)
    for name in (
        "embermesh_trainer_auc",
        "embermesh_trainer_loss",
        "embermesh_trainer_samples_total",
        "embermesh_trainer_phase_seconds",
        "embermesh_sparse_rows",
        "embermesh_sparse_bytes",
        "embermesh_sparse_staleness_steps",
        "embermesh_rpc_seconds",
        "embermesh_checkpoint_seconds",
    ):
        assert name in text
