"""The objects of a job: valid for Kubernetes 1.28 to 1.37 by its own schemas, restricted,
owned by the ledger, without a secret in clear.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gateway.compile import Surroundings
from gateway.kubernetes import ledger as ledgers
from gateway.kubernetes import manifests, names
from gateway.kubernetes.config import KubernetesConfig
from gateway.kubernetes.ledger import Grant, Ledger
from services.kit import config
from services.kit.discovery import Role
from services.kit.errors import Damaged, InvalidInput
from services.kit.pod_entry import PodConfig
from services.kit.tls import TlsConfig
from tests.fixtures.kubernetes_objects import AROUND, JOB, processes

VERSIONS = [f"1.{minor}" for minor in range(28, 38)]
PLAIN = KubernetesConfig()
EVERYTHING = KubernetesConfig(
    image_pull_secrets="registry, mirror",
    secrets="s3-credentials",
    redis_secret="redis",
    tls_secret="certificates",
    checkpoint_claim="checkpoints",
    node_selector="pool=training,disk=ssd",
    tolerations='[{"key": "training", "operator": "Exists"}]',
)
TLS = TlsConfig("/certs/ca.crt", "/certs/tls.crt", "/certs/tls.key")
SIZES = {
    "trainer": {"cpu": 1.5, "memory": "4Gi"},
    "sparse_ps": {"memory": "8G"},
    "dense_ps": {"cpu": 0.5},
}


def objects(settings: KubernetesConfig = PLAIN, **changes: Any) -> list[dict[str, Any]]:
    """Of all roles."""
    roles = manifests.by_role(processes(**changes)).values()
    return [o for specs in roles for o in manifests.objects(specs, settings, "owner", 15.0)]


def pods(settings: KubernetesConfig = PLAIN, **changes: Any) -> dict[str, dict[str, Any]]:
    """Component -> its pods' spec."""
    sets = [o for o in objects(settings, **changes) if o["kind"] == "StatefulSet"]
    return {o["metadata"]["labels"][names.ROLE]: o["spec"]["template"]["spec"] for o in sets}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid_by_the_strict_schema(version: str) -> None:
    everything = objects(EVERYTHING, around=dataclasses.replace(AROUND, tls=TLS), pods=SIZES)
    ledger = Ledger(JOB, 3, 1, {(Role.TRAINER, 0): Grant(0, "u")}, "uid", "9")
    for document in [*objects(), *everything, ledgers.render(ledger, "embermesh")]:
        # Through text, as it travels; equal parts of a Python object hide nothing there.
        document = yaml.safe_load(yaml.safe_dump(document))
        kubernetes_validate.validate(document, version, strict=True)


def test_the_strict_schema_sees_a_misspelt_field() -> None:
    document = objects()[-1]
    document["spec"]["podManagmentPolicy"] = "Parallel"
    with pytest.raises(kubernetes_validate.ValidationError, match="podManagmentPolicy"):
        kubernetes_validate.validate(document, "1.32", strict=True)


def test_a_role_has_a_config_map_a_headless_service_and_a_stateful_set_of_one_name() -> None:
    found = objects()
    assert [o["kind"] for o in found] == ["ConfigMap", "Service", "StatefulSet"] * 3
    for config_map, service, stateful_set in zip(found[::3], found[1::3], found[2::3], strict=True):
        name = stateful_set["metadata"]["name"]
        assert config_map["metadata"] == service["metadata"] == stateful_set["metadata"]
        assert service["spec"]["clusterIP"] == "None"
        assert stateful_set["spec"]["serviceName"] == name
        labels = stateful_set["metadata"]["labels"]
        assert stateful_set["spec"]["selector"]["matchLabels"] == labels
        assert stateful_set["spec"]["template"]["metadata"]["labels"] == labels
        assert service["spec"]["selector"] == labels
        assert (labels[names.JOB], labels[names.GENERATION]) == (JOB, "1")
        (owner,) = stateful_set["metadata"]["ownerReferences"]
        assert (owner["name"], owner["uid"]) == (names.ledger_name(JOB), "owner")
    replicas = {o["metadata"]["labels"][names.ROLE]: o["spec"]["replicas"] for o in found[2::3]}
    assert replicas == {"sparse-ps": 2, "dense-ps": 1, "trainer": 2}


def test_pods_are_restricted() -> None:
    for spec in pods(EVERYTHING).values():
        assert spec["automountServiceAccountToken"] is False
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True and security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()


def test_a_pod_has_time_to_drain_and_is_spread() -> None:
    for role, spec in pods(dataclasses.replace(PLAIN, zone_key="rack")).items():
        assert spec["terminationGracePeriodSeconds"] >= 15
        (spread,) = spec["topologySpreadConstraints"]
        assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("rack", "ScheduleAnyway")
        assert spread["labelSelector"]["matchLabels"][names.ROLE] == role
        rules = spec["affinity"]["podAntiAffinity"]
        (term,) = rules["preferredDuringSchedulingIgnoredDuringExecution"]
        assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"


def test_sizes_of_the_job_become_requests_and_limits() -> None:
    asked = {role: spec["containers"][0]["resources"] for role, spec in pods(pods=SIZES).items()}
    assert asked == {
        "trainer": {
            "requests": {"cpu": "1500m", "memory": str(4 << 30)},
            "limits": {"memory": str(4 << 30)},
        },
        "sparse-ps": {
            "requests": {"cpu": "250m", "memory": "8000000000"},
            "limits": {"memory": "8000000000"},
        },
        "dense-ps": {"requests": {"cpu": "500m"}},
    }
    modest = dataclasses.replace(PLAIN, default_cpu=0.0)
    assert all(spec["containers"][0]["resources"] == {} for spec in pods(modest).values())
    asked_for = [spec["containers"][0]["resources"]["requests"] for spec in pods().values()]
    assert asked_for == [{"cpu": "250m"}] * 3


def test_each_role_runs_its_module_behind_the_entry() -> None:
    commands = {role: spec["containers"][0]["command"][2:] for role, spec in pods().items()}
    assert commands == {
        "sparse-ps": ["services.kit.pod_entry", "ps_service", "sparse"],
        "dense-ps": ["services.kit.pod_entry", "ps_service", "dense"],
        "trainer": ["services.kit.pod_entry", "trainer_service"],
    }
    images = {role: spec["containers"][0]["image"] for role, spec in pods().items()}
    assert images["trainer"] == PLAIN.image_trainer
    assert images["sparse-ps"] == images["dense-ps"] == PLAIN.image_ps


def test_the_entry_finds_what_the_manifest_says() -> None:
    (container,) = pods()["trainer"]["containers"]
    plain = {v["name"]: v["value"] for v in container["env"] if "value" in v}
    fields = {
        v["name"]: v["valueFrom"]["fieldRef"]["fieldPath"]
        for v in container["env"]
        if "valueFrom" in v
    }
    assert fields["EMBERMESH_MEMBER_HOST"] == "status.podIP"
    settings = config.load(PodConfig, {**plain, **fields})
    assert settings.name == "metadata.name"
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    (grant,) = [v for v in pods()["trainer"]["volumes"] if v["name"] == "grant"]
    (item,) = grant["downwardAPI"]["items"]
    assert settings.grant == f"{mounts['grant']}/{item['path']}"
    assert item["fieldRef"]["fieldPath"] == f"metadata.annotations['{names.GRANT}']"
    assert settings.marks == mounts["marks"]


def test_no_value_of_a_secret_is_in_an_object() -> None:
    around = dataclasses.replace(AROUND, redis_url="rediss://ember:hunter2@redis:6379/0", tls=TLS)
    found = objects(EVERYTHING, around=around)
    assert "hunter2" not in yaml.safe_dump_all(found)
    (container,) = pods(EVERYTHING, around=around)["trainer"]["containers"]
    assert {"secretRef": {"name": "s3-credentials"}} in container["envFrom"]
    references = [v["valueFrom"].get("secretKeyRef") for v in container["env"] if "valueFrom" in v]
    assert {"name": "redis", "key": "redis-url"} in references
    volumes = {v["name"]: v for v in pods(EVERYTHING, around=around)["trainer"]["volumes"]}
    assert volumes["certificates"]["secret"] == {"secretName": "certificates"}
    assert {m["mountPath"] for m in container["volumeMounts"]} >= {"/certs", "/checkpoints"}


@pytest.mark.parametrize(
    ("around", "complaint"),
    [
        (
            dataclasses.replace(AROUND, redis_url="redis://:pw@r/0"),
            "EMBERMESH_KUBERNETES_REDIS_SEC",
        ),
        (dataclasses.replace(AROUND, tls=TLS), "EMBERMESH_KUBERNETES_TLS_SECRET must name"),
    ],
)
def test_a_missing_secret_is_named_by_its_setting(around: Surroundings, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint) as caught:
        objects(around=around)
    assert ":pw@" not in str(caught.value)


def test_certificates_in_several_folders_are_refused() -> None:
    scattered = TlsConfig("/ca/ca.crt", "/certs/tls.crt", "/certs/tls.key")
    with pytest.raises(InvalidInput, match="must be in one folder"):
        objects(EVERYTHING, around=dataclasses.replace(AROUND, tls=scattered))


def test_ranks_with_different_variables_are_refused() -> None:
    first, second = manifests.by_role(processes())[Role.TRAINER]
    odd = dataclasses.replace(second, env={**second.env, "TF_CPP_MIN_LOG_LEVEL": "0"})
    with pytest.raises(InvalidInput, match="trainer: a StatefulSet's processes must have equal"):
        manifests.objects([first, odd], PLAIN, "owner", 15.0)
    with pytest.raises(InvalidInput, match="ranks must be 0 to 0"):
        manifests.objects([second], PLAIN, "owner", 15.0)


def test_names_of_the_longest_job_fit_and_differ() -> None:
    long = [f"{'x' * 47}{end}-abcdef" for end in "ab"]
    made = {names.role_name(job, 9_999_999, role) for job in long for role in Role}
    assert len(made) == 2 * len(Role)
    for name in made:
        assert len(f"{name}-1023") <= 63 and len(name) <= 52  # pods; revisions of StatefulSets
        assert name[0].isalpha() and "--" not in name  # a Service's name is a DNS label
    assert names.ledger_name("3-b-abcdef") == "em-3-b-abcdef"
    assert names.rank_of(f"{names.role_name(JOB, 1, Role.SPARSE_PS)}-12") == 12


def test_a_ledger_is_read_as_it_was_written() -> None:
    grants = {(Role.TRAINER, 11): Grant(4, "u-11"), (Role.SPARSE_PS, 0): Grant(0, "u-0")}
    ledger = Ledger(JOB, fence=7, generation=3, grants=grants, uid="uid", version="12")
    assert ledgers.parse(ledgers.render(ledger, "embermesh")) == ledger
    assert ledger.granted(3) == grants and ledger.granted(4) == {}


def test_a_config_map_of_somebody_else_is_named() -> None:
    document = ledgers.render(Ledger(JOB, uid="u", version="1"), "embermesh")
    document["data"]["grants"] = "[]"
    with pytest.raises(Damaged, match=names.ledger_name(JOB)):
        ledgers.parse(document)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("IMAGE_PULL_POLICY", "Sometimes"),
        ("REQUEST_SECONDS", "0"),
        ("DEFAULT_CPU", "-1"),
        ("NODE_SELECTOR", "pool"),
        ("TOLERATIONS", "{key: a}"),
        ("TOLERATIONS", "[a, {"),
        ("NAMESPCE", "jobs"),
    ],
)
def test_a_wrong_setting_is_named(setting: str, value: str) -> None:
    name = f"EMBERMESH_KUBERNETES_{setting}"
    with pytest.raises(InvalidInput, match=name):
        config.load(KubernetesConfig, {name: value})
