"""ProcessSpecs of a generation -> the objects of Kubernetes that run them. Pure.

Per role: a ConfigMap with the variables that all its processes share, a headless Service, and a
StatefulSet whose pods are the ranks. What differs between pods they know themselves: the rank from
their name, the address from their status, the incarnation from their grant (`ledger`). Secrets are
referred to by name; no value of one is in any of these objects.

All pass Pod Security's `restricted` profile, and validate from Kubernetes 1.20 on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from gateway.kubernetes import names
from gateway.kubernetes.config import KubernetesConfig
from gateway.targets import ProcessSpec
from services.api.pods import PodSize
from services.kit.discovery import Role
from services.kit.errors import InvalidInput
from services.kit.member import MemberConfig
from services.kit.net import without_password
from services.kit.pod_entry import PodConfig
from services.kit.tls import TlsConfig

Object = dict[str, Any]

REDIS_KEY = "redis-url"  # in the Secret of setting redis_secret
USER = 10001  # of our images
_GRANT_FOLDER, _GRANT_FILE = "/etc/embermesh", "incarnation"
_MARKS, _SCRATCH, _CHECKPOINTS = "/run/embermesh", "/tmp", "/checkpoints"
_KILL_ALLOWANCE = 5  # seconds the gateway's own kill may come late
_M = MemberConfig.PREFIX
_OF_THE_POD = {f"{_M}RANK", f"{_M}INCARNATION", f"{_M}HOST"}


def by_role(processes: Sequence[ProcessSpec]) -> dict[Role, list[ProcessSpec]]:
    """The processes of each role by rank."""
    roles: dict[Role, list[ProcessSpec]] = {}
    for spec in sorted(processes, key=lambda spec: spec.rank):
        roles.setdefault(spec.role, []).append(spec)
    return roles


def objects(
    processes: Sequence[ProcessSpec], settings: KubernetesConfig, owner: str, stop_seconds: float
) -> list[Object]:
    """ConfigMap, Service and StatefulSet, in the order of their making.

    `processes` are those of one role of a generation, ranks 0 and up. `owner` is the uid of the
    job's ledger. Raises InvalidInput when the settings lack a Secret for what these need, or ranks
    differ in more than their pods can know.
    """
    first = processes[0]
    shared = [_shared(spec.env) for spec in processes]
    if [spec.rank for spec in processes] != list(range(len(processes))):
        raise InvalidInput(f"{first.role}: ranks must be 0 to {len(processes) - 1}")
    if any(variables != shared[0] for variables in shared):
        raise InvalidInput(f"{first.role}: a StatefulSet's processes must have equal variables")
    variables, secret = _without_secrets(shared[0], settings)
    labels = names.of_role(settings.instance, first.job, first.generation, first.role)
    meta: Object = {
        "name": names.role_name(first.job, first.generation, first.role),
        "labels": labels,
        "ownerReferences": [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": names.ledger_name(first.job),
                "uid": owner,
            }
        ],
    }
    pod = _pod(first, settings, meta["name"], labels, secret, math.ceil(stop_seconds))
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": variables},
        {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": _service(labels)},
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": meta,
            "spec": {
                "replicas": len(processes),
                "serviceName": meta["name"],
                "podManagementPolicy": "Parallel",  # ranks need each other to become ready
                "updateStrategy": {"type": "OnDelete"},  # a generation never changes
                "revisionHistoryLimit": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
    ]


def _shared(env: Mapping[str, str]) -> dict[str, str]:
    """What all ranks have in common; a pod has an address of its own, so its ports are fixed."""
    common = {key: value for key, value in env.items() if key not in _OF_THE_POD}
    ports = {f"{_M}PORT": names.GRPC_PORT, f"{_M}METRICS_PORT": names.METRICS_PORT}
    return {**common, **{key: str(port) for key, port in ports.items()}}


def _without_secrets(
    env: dict[str, str], settings: KubernetesConfig
) -> tuple[dict[str, str], list[Object]]:
    """The variables that may be read by everybody, and references to the others."""
    name, prefix = f"{_M}REDIS_URL", settings.PREFIX
    if settings.redis_secret:
        plain = {key: value for key, value in env.items() if key != name}
        reference = {"name": settings.redis_secret, "key": REDIS_KEY}
        return plain, [{"name": name, "valueFrom": {"secretKeyRef": reference}}]
    url = env.get(name, "")
    if url != without_password(url):
        raise InvalidInput(
            f"the Redis URL {without_password(url)!r} has a password, which must not be in a "
            f"ConfigMap: put the URL under {REDIS_KEY} into a Secret and name that in "
            f"{prefix}REDIS_SECRET"
        )
    return env, []


def _service(labels: dict[str, str]) -> Object:
    return {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,  # members find each other before they are ready
        "selector": labels,
        "ports": [
            {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
            for name, port in (("grpc", names.GRPC_PORT), ("metrics", names.METRICS_PORT))
        ],
    }


def _pod(
    spec: ProcessSpec,
    settings: KubernetesConfig,
    config_map: str,
    labels: dict[str, str],
    secret: list[Object],
    stop_seconds: int,
) -> Object:
    mounts, volumes = _volumes(spec.env, settings)
    image = settings.image_trainer if spec.role == Role.TRAINER else settings.image_ps
    container = {
        "name": names.CONTAINER,
        "image": image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", "services.kit.pod_entry", spec.module, *spec.arguments],
        "envFrom": [
            *({"secretRef": {"name": name}} for name in settings.names("secrets")),
            {"configMapRef": {"name": config_map}},
        ],
        "env": [*_own_variables(), *secret],
        "ports": [
            {"name": "grpc", "containerPort": names.GRPC_PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": names.METRICS_PORT, "protocol": "TCP"},
        ],
        # No liveness probe: a restart in place is never right, and silence is the gateway's to see.
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "metrics"}, "periodSeconds": 5},
        "resources": _resources(spec.size or PodSize(), settings.default_cpu),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",  # a dead process's last words
        "volumeMounts": mounts,
    }
    return {
        "serviceAccountName": settings.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "imagePullSecrets": [{"name": name} for name in settings.names("image_pull_secrets")],
        "terminationGracePeriodSeconds": stop_seconds + _KILL_ALLOWANCE,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "nodeSelector": settings.selector(),
        "tolerations": settings.toleration_list(),
        **_spread(labels, settings.zone_key),
        "containers": [container],
        "volumes": volumes,
    }


def _own_variables() -> list[Object]:
    """What a pod knows of itself, and where its entry finds the rest."""
    fields = {f"{PodConfig.PREFIX}NAME": "metadata.name", f"{_M}HOST": "status.podIP"}
    known = [{"name": k, "valueFrom": {"fieldRef": {"fieldPath": v}}} for k, v in fields.items()]
    paths = {
        f"{PodConfig.PREFIX}GRANT": f"{_GRANT_FOLDER}/{_GRANT_FILE}",
        f"{PodConfig.PREFIX}MARKS": _MARKS,
        "HOME": _SCRATCH,  # libraries that keep a cache must find a folder they may write to
    }
    return [*known, *({"name": key, "value": value} for key, value in paths.items())]


def _volumes(
    env: Mapping[str, str], settings: KubernetesConfig
) -> tuple[list[Object], list[Object]]:
    """Mounts and volumes, in the same order."""
    grant = {
        "path": _GRANT_FILE,
        "fieldRef": {"fieldPath": f"metadata.annotations['{names.GRANT}']"},
    }
    found: list[tuple[str, Object, Object]] = [
        ("grant", _read_only(_GRANT_FOLDER), {"downwardAPI": {"items": [grant]}}),
        ("marks", {"mountPath": _MARKS}, {"emptyDir": {}}),
        ("scratch", {"mountPath": _SCRATCH}, {"emptyDir": {}}),
    ]
    certificates = _certificates(env, settings)
    if certificates:
        secret = {"secretName": settings.tls_secret}
        found.append(("certificates", _read_only(certificates), {"secret": secret}))
    if settings.checkpoint_claim:
        claim = {"persistentVolumeClaim": {"claimName": settings.checkpoint_claim}}
        found.append(("checkpoints", {"mountPath": _CHECKPOINTS}, claim))
    return (
        [{"name": name, **mount} for name, mount, _ in found],
        [{"name": name, **volume} for name, _, volume in found],
    )


def _read_only(path: str) -> Object:
    return {"mountPath": path, "readOnly": True}


def _certificates(env: Mapping[str, str], settings: KubernetesConfig) -> str:
    """The folder of the certificates; empty without any."""
    paths = [env.get(f"{TlsConfig.PREFIX}{name}", "") for name in ("CA", "CERT", "KEY")]
    folders = {str(PurePosixPath(path).parent) for path in paths if path}
    if not folders:
        return ""
    if not settings.tls_secret:
        raise InvalidInput(
            f"{settings.PREFIX}TLS_SECRET must name the Secret with the certificates, since the "
            f"gateway has {TlsConfig.PREFIX}CERT={paths[1]!r}"
        )
    if len(folders) > 1:
        raise InvalidInput(
            f"{TlsConfig.PREFIX}CA, CERT and KEY must be in one folder, not {sorted(folders)}: "
            "pods mount them from one Secret"
        )
    return folders.pop()


def _resources(size: PodSize, default_cpu: float) -> Object:
    requests: Object = {}
    # A pod that asks for nothing gets next to nothing while its node is busy.
    cpu = default_cpu if size.cpu is None else size.cpu
    if cpu:
        requests["cpu"] = f"{max(1, round(cpu * 1000))}m"
    limits: Object = {}
    if size.memory is not None:
        # Equal, so that a pod is never killed for memory that it was promised. A limit on CPU would
        # only slow a step down while cores are idle.
        requests["memory"] = limits["memory"] = str(size.memory)
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def _spread(labels: dict[str, str], zone_key: str) -> Object:
    """Ranks of a role on different machines and over zones, as far as there are any."""
    apart = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    return {
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 100, "podAffinityTerm": apart}
                ]
            }
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": zone_key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels},
            }
        ],
    }
