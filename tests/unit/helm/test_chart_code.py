"""The chart against the code: its variables are settings, its paths are answered, its secrets stay
secrets.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
import yaml

from gateway.access_config import AccessConfig
from gateway.config import GatewayConfig
from gateway.kubernetes.config import KubernetesConfig
from gateway.kubernetes.names import GRPC_PORT, METRICS_PORT
from gateway.routes import jobs, operations
from services.checkpoint.config import CheckpointServiceConfig
from services.kit import config
from services.kit.tls import TlsConfig
from tests.data import ROOT
from tests.fixtures.helm_values import (
    CHART,
    EVERYTHING,
    MATRIX,
    SECRETS,
    Manifest,
    Render,
    find,
    pods,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

KINDS = (GatewayConfig, AccessConfig, KubernetesConfig, CheckpointServiceConfig, TlsConfig)
KNOWN = (*(kind.PREFIX for kind in KINDS), "AWS_")
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


def secrets(manifests: list[Manifest]) -> dict[str, dict[str, str]]:
    return {m["metadata"]["name"]: m["stringData"] for m in manifests if m["kind"] == "Secret"}


def environment(manifests: list[Manifest], component: str) -> dict[str, str]:
    """Variables of the component's container as its process would see them."""
    held = secrets(manifests)
    (container,) = pods(manifests)[component]["spec"]["containers"]
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= held.get(source["secretRef"]["name"], {})
    for variable in container["env"]:
        if "value" in variable:
            found[variable["name"]] = variable["value"]
        else:
            place = variable["valueFrom"]["secretKeyRef"]
            found[variable["name"]] = held.get(place["name"], {}).get(place["key"], "ab" * 32)
    return found


@pytest.mark.parametrize("values", MATRIX)
def test_services_understand_their_variables(values: str, render: Render) -> None:
    manifests = render(MATRIX[values])
    seen = environment(manifests, "gateway")
    gateway = config.load(GatewayConfig, seen)
    config.load(AccessConfig, seen).check_host(gateway.host)
    target = config.load(KubernetesConfig, seen)
    checkpoint = config.load(CheckpointServiceConfig, environment(manifests, "checkpoint"))
    assert (gateway.target, target.namespace, target.instance) == ("kubernetes", "prod", "ember")
    service = find(manifests, "Service", "-checkpoint")
    assert gateway.checkpoint_address == f"{service['metadata']['name']}:{checkpoint.port}"
    for names in (seen, environment(manifests, "checkpoint")):
        assert all(name.startswith(KNOWN) for name in names)


def test_all_values_arrive(render: Render) -> None:
    manifests = render(EVERYTHING)
    seen = environment(manifests, "gateway")
    access, target = config.load(AccessConfig, seen), config.load(KubernetesConfig, seen)
    assert access.admin_digest == SECRETS["access"]
    assert access.oidc_issuer == "https://login.example.com"
    assert access.origins == ["https://a.example.com", "https://b.example.com"]
    assert (access.quota.jobs, access.quota.memory_bytes) == (10, int(512.5 * 2**30))
    assert config.load(GatewayConfig, seen).tick_seconds == 0.5
    assert target.image_trainer == "registry.example.com/ads/embermesh-trainer:1.2.3"
    assert target.selector() == {"pool": "training", "disk": "ssd"}
    assert target.toleration_list() == [{"key": "training", "operator": "Exists"}]
    assert target.names("image_pull_secrets") == ["pull"]
    assert target.service_account == find(manifests, "ServiceAccount", "-jobs")["metadata"]["name"]
    assert secrets(manifests).keys() >= {target.redis_secret, *target.names("secrets")}
    assert find(manifests, "PersistentVolumeClaim", target.checkpoint_claim)
    for component in ("gateway", "checkpoint"):
        seen = environment(manifests, component)
        assert seen["AWS_SECRET_ACCESS_KEY"] == SECRETS["s3"]
        assert seen["AWS_ENDPOINT_URL"] == "http://store.example.com:9000"
        (mount,) = [
            m
            for m in pods(manifests)[component]["spec"]["containers"][0]["volumeMounts"]
            if m["name"] == "tls"
        ]
        tls = config.load(TlsConfig, seen)
        assert {tls.ca, tls.cert, tls.key} == {
            f"{mount['mountPath']}/{file}" for file in ("ca.crt", "tls.crt", "tls.key")
        }


def test_own_secrets_are_used_and_none_is_made(render: Render) -> None:
    own = render(MATRIX["own-parts"])
    assert secrets(own).keys() == {"clicks-redis"}  # for the URL, which may hold a password
    assert secrets(render(MATRIX["own-secrets"])) == {}
    target = config.load(KubernetesConfig, environment(own, "gateway"))
    assert target.names("secrets") == ["my-store"]
    assert (target.service_account, target.checkpoint_claim) == ("my-jobs", "my-checkpoints")
    assert not [m for m in own if m["kind"] in ("ServiceAccount", "PersistentVolumeClaim")]


@pytest.mark.parametrize("values", MATRIX)
def test_secrets_are_in_secrets_only(values: str, render: Render) -> None:
    manifests = render(MATRIX[values])
    open_text = json.dumps([m for m in manifests if m["kind"] != "Secret"])
    for secret in SECRETS.values():
        assert secret not in open_text
    given = json.dumps(MATRIX[values])
    kept = json.dumps([m for m in manifests if m["kind"] == "Secret"])
    assert {s for s in SECRETS.values() if s in given} == {s for s in SECRETS.values() if s in kept}


def test_the_role_is_the_targets_list(render: Render) -> None:
    manifests = render({})
    role = find(manifests, "Role", "-gateway")
    assert role["rules"] == yaml.safe_load((CHART / "files" / "rbac-rules.yaml").read_text())
    assert role["rules"]
    binding = find(manifests, "RoleBinding", "-gateway")
    account = pods(manifests)["gateway"]["spec"]["serviceAccountName"]
    assert [s["name"] for s in binding["subjects"]] == [account]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert not [m for m in manifests if m["kind"].startswith("Cluster")]


def test_ports_are_those_of_the_code(render: Render) -> None:
    assert VALUES["gateway"]["port"] == GatewayConfig.port
    assert VALUES["checkpoint"]["port"] == CheckpointServiceConfig.port
    assert VALUES["checkpoint"]["metricsPort"] == CheckpointServiceConfig.metrics_port
    text = json.dumps([m for m in render(EVERYTHING) if m["kind"] == "NetworkPolicy"])
    assert {f'"port": {p}' for p in (GRPC_PORT, METRICS_PORT)} <= set(
        re.findall(r'"port": \d+', text)
    )


def test_probes_ask_paths_that_are_answered(render: Render) -> None:
    answered = {
        str(getattr(r, "path", "")) for r in (*operations.router.routes, *jobs.router.routes)
    }
    for pod in pods(render({})).values():
        for container in pod["spec"]["containers"]:
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                path = container.get(probe, {}).get("httpGet", {}).get("path", "/healthz")
                assert path in answered
    asked = set(re.findall(r"\}(/[\w/]+)\"", (CHART / "files" / "probe.py").read_text()))
    assert asked == {"/readyz", "/v1/jobs"}
    assert asked <= answered


def test_the_test_pod_runs_a_program_that_compiles(render: Render) -> None:
    (container,) = pods(render({}))["test"]["spec"]["containers"]
    program, gateway, checkpoint, mode = container["args"]
    compile(program, "probe.py", "exec")
    assert program.strip() == (CHART / "files" / "probe.py").read_text().strip()
    assert (gateway, checkpoint, mode) == (
        "http://ember-embermesh-gateway:8080",
        "http://ember-embermesh-checkpoint:7701",
        "token",
    )


def test_chart_and_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]


def test_bundled_parts_are_the_ones_of_compose(render: Render) -> None:
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for part in ("redis", "kafka"):
        assert VALUES[part]["image"] == services[part]["image"]
    found = environment(render(EVERYTHING), "kafka")
    same = {
        n for n in services["kafka"]["environment"] if n.endswith(("_FACTOR", "_ISR", "_ROLES"))
    }
    assert len(same) >= 3
    for name in same:
        assert found[name] == str(services["kafka"]["environment"][name])
