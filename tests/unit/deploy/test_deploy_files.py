"""Containers against the code: settings, ports, modules, paths named in both. The chart's tests
are in tests/unit/helm.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import subprocess
import sys
from typing import Any, cast

import pytest
import yaml

from gateway.config import GatewayConfig
from gateway.routes import operations
from gateway.targets import standby
from services.checkpoint.config import CheckpointServiceConfig
from services.kit import config
from services.standby.config import StandbyConfig
from tests.data import ROOT
from tests.fixtures.missing import program
from tools.requirements import requirements_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

AGENTS = {"sparse-ps": "ps", "dense-ps": "ps", "trainer": "trainer"}  # service -> image
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()


def load(*parts: str) -> dict[str, Any]:
    return cast(dict[str, Any], yaml.safe_load(ROOT.joinpath(*parts).read_text()))


COMPOSE = load("docker-compose.yml")["services"]


def settings_of(service: str, kind: type[Any]) -> Any:
    """The service's settings as its process would read them from docker-compose.yml."""
    return config.load(kind, {k: str(v) for k, v in COMPOSE[service]["environment"].items()})


def default(kind: type[Any], field: str) -> Any:
    return next(f.default for f in dataclasses.fields(kind) if f.name == field)


def seconds(duration: str) -> float:
    assert duration.endswith("s")
    return float(duration[:-1])


def container_port(published: str) -> int:
    return int(published.rsplit(":", 1)[1])


def test_compose_services_read_their_settings() -> None:
    gateway = settings_of("gateway", GatewayConfig)
    checkpoint = settings_of("checkpoint", CheckpointServiceConfig)
    assert gateway.checkpoint_address == f"checkpoint:{checkpoint.port}"
    assert gateway.redis_url == checkpoint.redis_url == "redis://redis:6379/0"
    assert [container_port(p) for p in COMPOSE["gateway"]["ports"]] == [gateway.port]
    assert gateway.target == standby.__name__.rsplit(".", 1)[1]
    for service in AGENTS:
        agent = settings_of(service, StandbyConfig)
        assert agent.redis_url == gateway.redis_url
        assert [str(role) for role in agent.parsed_roles()] == [service]
        assert agent.stop_seconds < seconds(COMPOSE[service]["stop_grace_period"])


def test_compose_roles_run_in_their_images() -> None:
    for service, image in AGENTS.items():
        assert COMPOSE[service]["image"].startswith(f"embermesh-{image}:")
    version = tomllib.loads(read("pyproject.toml"))["project"]["version"]
    ours = [s["image"] for s in COMPOSE.values() if s["image"].startswith("embermesh-")]
    assert len(ours) == 5
    assert all(image.endswith(f":${{IMAGE_TAG:-{version}}}") for image in ours)


def test_compose_gives_no_container_more_than_it_needs() -> None:
    writable_root = {"kafka", "grafana"}  # why: see the file
    for name, service in COMPOSE.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["restart"] == "unless-stopped", name
        assert service["mem_limit"].startswith("${"), f"{name}: overridable"
        assert service.get("read_only", False) == (name not in writable_root), name


def test_compose_services_share_the_checkpoints() -> None:
    for service in ("gateway", "checkpoint", *AGENTS):
        assert "checkpoints:/checkpoints" in COMPOSE[service]["volumes"], service
    named = {v.split(":")[0] for s in COMPOSE.values() for v in s.get("volumes", [])}
    declared = set(load("docker-compose.yml")["volumes"])
    assert {v for v in named if not v.startswith((".", "$"))} == declared


def test_compose_publishes_on_the_loopback_interface_only() -> None:
    ports = [p for s in COMPOSE.values() for p in s.get("ports", [])]
    assert ports
    assert all(p.startswith("127.0.0.1:") for p in ports)


def test_compose_builds_targets_of_the_dockerfile() -> None:
    targets = set(re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, re.MULTILINE))
    assert {"gateway", "ps", "trainer", "checkpoint"} <= targets
    for service in COMPOSE.values():
        if "build" in service:
            assert service["build"]["target"] in targets
            assert (ROOT / service["build"]["dockerfile"]).exists()


def test_mounted_files_exist() -> None:
    for service in COMPOSE.values():
        for volume in service.get("volumes", []):
            if volume.startswith("./"):
                assert (ROOT / volume.split(":")[0]).exists(), volume


def test_the_broker_is_the_one_that_is_tested() -> None:
    tested = re.search(
        r"kafka_2\.13</artifactId>\s*<version>([\d.]+)<", read("deploy/kafka/pom.xml")
    )
    assert tested is not None
    assert COMPOSE["kafka"]["image"] == f"apache/kafka:{tested[1]}"


def test_entry_points_are_modules_of_ours() -> None:
    modules = re.findall(r'^CMD \["([\w.]+)"\]$', DOCKERFILE, re.MULTILINE)
    assert sorted(modules) == [
        "gateway",
        "services.checkpoint",
        "services.standby",
        "services.standby",
    ]
    for module in modules:
        assert importlib.util.find_spec(f"{module}.__main__") is not None, module


def test_images_install_extras_that_exist() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    installed = {
        image: requirements_of(extras.split())
        for extras, image in re.findall(
            r"requirements.py ([\w ]+) > /packages/(\w+)\.txt", DOCKERFILE
        )
    }
    assert installed.keys() == {"gateway", "ps", "trainer", "checkpoint"}
    for image, packages in installed.items():
        assert set(project["dependencies"]) <= set(packages)
        named = " ".join(packages)
        assert ("tensorflow" in named) == ("keras" in named) == (image == "trainer"), image
        assert ("fastapi" in named) == (image == "gateway"), image
        assert not any(p.startswith("embermesh") for p in packages)


def test_an_unknown_extra_is_refused() -> None:
    with pytest.raises(KeyError, match="gatway"):
        requirements_of(["gatway"])


def test_images_expose_the_default_ports_and_run_as_nobody() -> None:
    exposed = {
        int(p) for line in re.findall(r"^EXPOSE (.+)$", DOCKERFILE, re.M) for p in line.split()
    }
    assert exposed == {
        default(GatewayConfig, "port"),
        default(CheckpointServiceConfig, "port"),
        default(CheckpointServiceConfig, "metrics_port"),
        default(StandbyConfig, "metrics_port"),
    }
    assert DOCKERFILE.count('ENTRYPOINT ["python", "-m"]') == 4
    assert DOCKERFILE.count("USER 10001:10001") == DOCKERFILE.count("HEALTHCHECK") == 4
    probed = {int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)/readyz", DOCKERFILE)}
    assert probed == exposed - {default(CheckpointServiceConfig, "port")}
    assert "PYTHONSAFEPATH=1" in DOCKERFILE


def test_the_build_context_holds_what_the_build_reads() -> None:
    allowed = {line[1:] for line in read(".dockerignore").splitlines() if line.startswith("!")}
    project = tomllib.loads(read("pyproject.toml"))
    needed = {project["project"]["readme"], "pyproject.toml", "constraints.txt", "CMakeLists.txt"}
    needed |= set(project["tool"]["scikit-build"]["wheel"]["packages"])
    assert needed <= allowed


def test_prometheus_scrapes_where_the_services_listen() -> None:
    jobs = {
        j["job_name"]: j for j in load("deploy", "prometheus", "prometheus.yml")["scrape_configs"]
    }
    targets = {t for s in jobs["embermesh-services"]["static_configs"] for t in s["targets"]}
    gateway = settings_of("gateway", GatewayConfig)
    checkpoint = settings_of("checkpoint", CheckpointServiceConfig)
    assert targets == {f"gateway:{gateway.port}", f"checkpoint:{checkpoint.metrics_port}"}
    (discovery,) = jobs["embermesh-members"]["http_sd_configs"]
    assert discovery["url"] == f"http://gateway:{gateway.port}/v1/services/prometheus"
    assert "/v1/services/prometheus" in gateway_paths()
    (agents,) = jobs["embermesh-agents"]["dns_sd_configs"]
    assert set(agents["names"]) == AGENTS.keys()
    assert agents["port"] == settings_of("trainer", StandbyConfig).metrics_port


def test_prometheus_sends_alerts_to_the_alertmanager_of_the_stack() -> None:
    alerting = load("deploy", "prometheus", "prometheus.yml")["alerting"]["alertmanagers"]
    (target,) = [t for a in alerting for s in a["static_configs"] for t in s["targets"]]
    name, port = target.split(":")
    assert [container_port(p) for p in COMPOSE[name]["ports"]] == [int(port)]
    (folder,) = [v for v in COMPOSE[name]["volumes"] if "ALERTMANAGER_FOLDER" in v]
    default_folder, mounted = folder.partition(":-")[2].split("}:")
    options = dict(o.removeprefix("--").split("=", 1) for o in COMPOSE[name]["command"])
    file = options["config.file"]
    assert file.startswith(mounted.removesuffix(":ro"))
    assert (ROOT / default_folder / file.rpartition("/")[2]).exists()


def test_amtool_is_content_with_the_alertmanagers_configuration() -> None:
    amtool = program("amtool", "prometheus-alertmanager")
    file = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"
    words = [amtool, "check-config", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr


def test_third_party_images_can_be_pulled_or_built() -> None:
    """Of every image that isn't ours engine.sh knows what to do where there is no registry."""
    recipes = read("deploy/engine/images.sh")
    for name, service in COMPOSE.items():
        image = service["image"].partition(":")[0]
        if not image.startswith("embermesh-"):
            assert f'"$(image_of {image})" build_' in recipes, name


@pytest.mark.parametrize(
    "file", sorted(str(p.relative_to(ROOT)) for p in (ROOT / "deploy" / "grafana").rglob("*.yml"))
)
def test_grafana_finds_its_data_source_and_dashboards(file: str) -> None:
    document = load(file)
    assert document["apiVersion"] == 1
    mounted = {v.split(":")[1] for v in COMPOSE["grafana"]["volumes"]}
    if "providers" in document:
        assert document["providers"][0]["options"]["path"] in mounted
    else:
        assert document["datasources"][0]["url"] == "http://prometheus:9090"


def read(file: str) -> str:
    return (ROOT / file).read_text()


def gateway_paths() -> set[str]:
    return {str(getattr(route, "path", "")) for route in operations.router.routes}
