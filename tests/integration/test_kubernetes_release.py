"""The chart and a real, old Kubernetes: its API versions are found by what the server has, and what
the release owns goes with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from gateway.config import GatewayConfig
from gateway.targets.kubernetes import create
from services.kit.errors import Unavailable
from tests.fixtures.helm_values import CHART, EVERYTHING
from tests.fixtures.kubernetes_api import Namespace, wait_until
from tests.fixtures.kubernetes_objects import JOB, processes

OWNER = "ember-embermesh-jobs"


@pytest.fixture
def release(kubernetes_namespace: Namespace, tmp_path: Path) -> helm_python.Config:
    """Helm with all rights in the test's namespace."""
    document = yaml.safe_load(kubernetes_namespace.kubeconfig.read_text())
    bearer = kubernetes_namespace.admin._client.headers["Authorization"]
    document["users"][0]["user"] = {"token": bearer.removeprefix("Bearer ")}
    kubeconfig = tmp_path / "admin"
    kubeconfig.write_text(yaml.safe_dump(document))
    return helm_python.Config(kubeconfig_path=str(kubeconfig), namespace=kubernetes_namespace.name)


def test_an_old_kubernetes_gets_the_api_versions_it_has(
    release: helm_python.Config, kubernetes_namespace: Namespace
) -> None:
    values: dict[str, Any] = {**EVERYTHING, "monitoring": {"dashboards": True}}
    release.install(str(CHART), "ember", values, namespace=kubernetes_namespace.name)
    stored = release.status("ember")
    manifests = list(yaml.safe_load_all(stored["manifest"]))
    versions = {m["kind"]: m["apiVersion"] for m in manifests if m}
    assert versions["HorizontalPodAutoscaler"] == "autoscaling/v2beta2"
    assert versions["PodDisruptionBudget"] == "policy/v1beta1"
    assert versions["Ingress"] == "networking.k8s.io/v1"
    # The same once more changes nothing: no field is the server's to fill in.
    release.upgrade(str(CHART), "ember", values, namespace=kubernetes_namespace.name)
    release.uninstall("ember")
    wait_until(lambda: not kubernetes_namespace.list("services", "helm.sh/chart"))


def test_what_the_release_owns_goes_with_it(
    kubernetes_namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = kubernetes_namespace
    monkeypatch.setenv("EMBERMESH_KUBERNETES_OWNER", OWNER)
    target = create(GatewayConfig())
    with pytest.raises(Unavailable, match=f"EMBERMESH_KUBERNETES_OWNER='{OWNER}'"):
        target.start(processes(), 1)  # a gateway that outlives its release begins nothing
    assert namespace.list("configmaps") == []
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": OWNER}}
    namespace.admin("POST", namespace.path("configmaps"), owner)
    target.start(processes(), 1)
    target.start(processes(), 2)  # the ledger was written again and keeps its owner
    wait_until(lambda: len(namespace.list("pods")) == 5)
    namespace.admin("DELETE", namespace.path("configmaps", OWNER))
    for plural in ("configmaps", "services", "statefulsets", "pods"):
        wait_until(lambda p=plural: not namespace.list(p), plural)
    assert target.observe(JOB, 1) == []
