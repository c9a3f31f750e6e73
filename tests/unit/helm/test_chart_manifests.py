"""What the chart renders is what Kubernetes takes: every object against the strict schemas of each
supported version, every pod against the "restricted" security standard.
"""

from __future__ import annotations

import json
import re
from typing import Any

import helm_python
import pytest
import yaml

from tests.data import ROOT
from tests.fixtures import kubernetes_schemas
from tests.fixtures.helm_values import (
    CHART,
    EVERYTHING,
    MATRIX,
    REQUESTS,
    Manifest,
    Render,
    find,
    pods,
)

# Of the Prometheus operator; its schemas are not Kubernetes'. Their shape is tested below.
CUSTOM = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
RESTRICTED_VOLUMES = {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}


@pytest.mark.parametrize("values", MATRIX)
def test_lint_finds_nothing(values: str) -> None:
    report = helm_python.lint(CHART, MATRIX[values], strict=True)
    assert [m for m in report["messages"] if m["severity"] > 1] == []  # 1: "icon is recommended"


@pytest.fixture(scope="module")
def standard(render: Render) -> list[Manifest]:
    """Every object that any of the values give, once."""
    found = {json.dumps(m): m for values in MATRIX.values() for m in render(values)}
    return [m for m in found.values() if m["kind"] not in CUSTOM]


@pytest.mark.parametrize("version", kubernetes_schemas.VERSIONS)
def test_every_supported_kubernetes_takes_every_object(
    version: str, standard: list[Manifest]
) -> None:
    assert len(standard) > 60
    for manifest in standard:
        kubernetes_schemas.check(manifest, version)


def test_the_check_finds_a_slip(render: Render) -> None:
    manifest = find(render(EVERYTHING), "HorizontalPodAutoscaler")
    manifest["spec"]["maxReplica"] = manifest["spec"].pop("maxReplicas")
    with pytest.raises(kubernetes_schemas.ValidationError, match="maxReplica"):
        kubernetes_schemas.check(manifest, "1.32")


@pytest.mark.parametrize("values", MATRIX)
def test_names_are_unique_and_short(values: str, render: Render) -> None:
    manifests = render({**MATRIX[values], "fullnameOverride": "n" * 60})
    names = [(m["kind"], m["metadata"]["name"]) for m in manifests]
    assert len(set(names)) == len(names)
    assert max(len(name) for _, name in names) <= 63


def assert_restricted(pod: Manifest) -> None:
    """The pod security standard "restricted", and a root file system that can't be written."""
    spec = pod["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    for volume in spec.get("volumes", []):
        assert len(volume.keys() & RESTRICTED_VOLUMES) == 1, volume
    for container in spec["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "privileged" not in context
        assert {"requests", "limits"} <= container["resources"].keys()


@pytest.mark.parametrize("values", MATRIX)
def test_pods_are_restricted(values: str, render: Render) -> None:
    found = pods(render(MATRIX[values]))
    assert {"gateway", "checkpoint", "test"} <= found.keys()
    for component, pod in found.items():
        assert_restricted(pod)
        # Only the gateway talks to the API server.
        assert pod["spec"]["automountServiceAccountToken"] is (component == "gateway")


def test_services_find_their_pods_and_ports(render: Render) -> None:
    manifests = render(EVERYTHING)
    services = [m for m in manifests if m["kind"] == "Service"]
    assert len(services) == 4
    for service in services:
        selector = service["spec"]["selector"]
        pod = pods(manifests)[selector["app.kubernetes.io/component"]]
        assert selector.items() <= pod["metadata"]["labels"].items()
        named = {p["name"] for c in pod["spec"]["containers"] for p in c["ports"]}
        for port in service["spec"]["ports"]:
            assert port["protocol"] == "TCP"  # server-side apply needs it said
            assert port["targetPort"] in named


def test_selectors_do_not_change_with_the_chart_version(render: Render) -> None:
    for values in MATRIX.values():
        for manifest in render(values):
            if manifest["kind"] == "Deployment":
                chosen = manifest["spec"]["selector"]["matchLabels"]
                labels = manifest["spec"]["template"]["metadata"]["labels"]
                # Labels with a version would start every pod anew at each change of the chart.
                assert chosen == labels
                assert not {"helm.sh/chart", "app.kubernetes.io/version"} & labels.keys()


def test_gateways_scale_by_replicas_or_by_load(render: Render) -> None:
    fixed = render({"gateway": {"replicas": 3}})
    assert find(fixed, "Deployment", "-gateway")["spec"]["replicas"] == 3
    assert not [m for m in fixed if m["kind"] == "HorizontalPodAutoscaler"]
    loaded = render({"gateway": {"replicas": 3, "autoscaling": {"enabled": True}}})
    deployment = find(loaded, "Deployment", "-gateway")
    assert "replicas" not in deployment["spec"]  # an upgrade would undo the autoscaler's choice
    scaler = find(loaded, "HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert [m["type"] for m in scaler["spec"]["metrics"]] == ["Resource"]


def test_gateways_scale_by_metrics_that_the_adapter_has(render: Render) -> None:
    autoscaling = {"enabled": True, "extraMetrics": [REQUESTS]}
    scaler = find(render({"gateway": {"autoscaling": autoscaling}}), "HorizontalPodAutoscaler")
    assert scaler["spec"]["metrics"][1:] == [REQUESTS]
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "adapter.yml").read_text())["rules"]
    document = (ROOT / "docs" / "deploy.md").read_text()
    section = document.split("### Metrics for autoscalers")[1].split("\n### ")[0]
    named = [rule["name"]["as"] for rule in (*rules["custom"], *rules["external"])]
    assert REQUESTS["pods"]["metric"]["name"] in named
    assert all(section.count(name) >= 1 for name in named)
    used = set(re.findall(r"metric: \{name: (\w+)\}", section))
    assert len(used) == 2 and used <= set(named)


def test_a_changed_secret_makes_new_pods_of_those_who_read_it(render: Render) -> None:
    before, after = (pods(render({"redis": {"password": word}})) for word in ("one", "two"))
    for component in ("gateway", "checkpoint", "redis"):
        assert before[component] != after[component]
    assert before["test"] == after["test"]


def test_uninstall_keeps_checkpoints_unless_told_otherwise(render: Render) -> None:
    for keep in (True, False):
        claim = find(
            render({"checkpointVolume": {"enabled": True, "keep": keep}}),
            "PersistentVolumeClaim",
            "-checkpoints",
        )
        kept = claim["metadata"].get("annotations", {}) == {"helm.sh/resource-policy": "keep"}
        assert kept is keep


def test_rules_and_dashboards_are_those_of_the_repository(render: Render) -> None:
    manifests = render(EVERYTHING)
    rules = find(manifests, "PrometheusRule")["spec"]
    text = (ROOT / "deploy" / "prometheus" / "rules.yml").read_text()
    assert rules == yaml.safe_load(
        text.replace("runbook_url: docs/", "runbook_url: https://git.example.com/embermesh/docs/")
    )
    boards = find(manifests, "ConfigMap", "-dashboards")
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    folder = ROOT / "deploy" / "grafana" / "dashboards"
    files = {f.name: json.loads(f.read_text()) for f in folder.glob("*.json")}
    assert {name: json.loads(board) for name, board in boards["data"].items()} == files


def test_monitors_choose_services_and_name_the_labels_that_rules_ask_for(render: Render) -> None:
    manifests = render(EVERYTHING)
    services = [m for m in manifests if m["kind"] == "Service"]
    for component, port in (("gateway", "http"), ("checkpoint", "metrics")):
        monitor = find(manifests, "ServiceMonitor", component)
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        chosen = monitor["spec"]["selector"]["matchLabels"].items()
        (service,) = [s for s in services if chosen <= s["metadata"]["labels"].items()]
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] == port
        assert port in {p["name"] for p in service["spec"]["ports"]}
        assert endpoint["honorLabels"] is True
    (endpoint,) = find(manifests, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert {r["targetLabel"] for r in endpoint["relabelings"]} == {"job", "role", "rank"}


def test_notes_say_what_is_left_to_do(chart: helm_python.Chart) -> None:
    def notes(values: dict[str, Any]) -> str:
        texts = chart.render(values, name="ember", namespace="prod")
        return texts["embermesh/templates/NOTES.txt"]

    assert "Nobody can come in yet" in notes({})
    assert "Nobody can come in yet" not in notes(EVERYTHING)
    assert "https://embermesh.example.com" in notes(EVERYTHING)
    assert "WARNING: access.mode is open-network" in notes(MATRIX["trial"])
    assert "Redis has no volume" in notes(MATRIX["trial"])
