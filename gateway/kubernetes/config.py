"""Settings of target `kubernetes`: where and how the pods of jobs run."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NoReturn

import yaml

from services.kit.errors import InvalidInput

PULL_POLICIES = ("Always", "IfNotPresent", "Never")


@dataclasses.dataclass(frozen=True)
class KubernetesConfig:
    """Lists are written with commas. The namespace and every object named here must exist; all are
    in the one namespace. Raises InvalidInput for a value that Kubernetes would refuse later.
    """

    PREFIX: ClassVar[str] = "EMBERMESH_KUBERNETES_"
    namespace: str = ""  # of the jobs' pods; empty = the gateway's own, or the kubeconfig's
    kubeconfig: str = ""  # file; empty = the service account of the pod that this gateway runs in
    instance: str = "embermesh"  # label app.kubernetes.io/instance: whose jobs these are
    image_ps: str = "embermesh-ps:0.1.0"
    image_trainer: str = "embermesh-trainer:0.1.0"
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: str = ""  # names of Secrets
    owner: str = ""  # ConfigMap; deleting it deletes everything of all jobs
    service_account: str = "default"  # of the jobs' pods; its token is not mounted
    secrets: str = ""  # names of Secrets whose keys become variables of every process
    redis_secret: str = ""  # Secret whose key redis-url is the URL; empty = the gateway's own URL
    tls_secret: str = ""  # Secret with the certificates, mounted where EMBERMESH_TLS_CERT lies
    checkpoint_claim: str = ""  # PersistentVolumeClaim mounted at /checkpoints; empty = none
    default_cpu: float = 0.25  # cores requested for a process whose job asks for none; 0 = none
    node_selector: str = ""  # key=value
    tolerations: str = ""  # YAML or JSON list, as in a pod
    zone_key: str = "topology.kubernetes.io/zone"  # node label over which a role's pods spread
    request_seconds: float = 10.0  # for one call to the API, retries included

    def __post_init__(self) -> None:
        if self.image_pull_policy not in PULL_POLICIES:
            self._refuse("image_pull_policy", f"must be one of {', '.join(PULL_POLICIES)}")
        if not self.request_seconds > 0:
            self._refuse("request_seconds", "must be above 0")
        if self.default_cpu < 0:
            self._refuse("default_cpu", "must be 0 or more")
        if not all(pair.find("=") > 0 for pair in _listed(self.node_selector)):
            self._refuse("node_selector", "must be a list of key=value")
        self.toleration_list()

    def names(self, field: str) -> list[str]:
        """The names a list setting holds."""
        return _listed(getattr(self, field))

    def selector(self) -> dict[str, str]:
        """`node_selector` as labels."""
        return dict(pair.split("=", 1) for pair in _listed(self.node_selector))

    def toleration_list(self) -> list[dict[str, Any]]:
        """`tolerations`, parsed."""
        try:
            parsed = yaml.safe_load(self.tolerations) or []
        except yaml.YAMLError as error:
            self._refuse("tolerations", f"is not YAML: {error}")
        if not isinstance(parsed, list) or not all(isinstance(item, dict) for item in parsed):
            self._refuse("tolerations", "must be a list of mappings")
        return list(parsed)

    def _refuse(self, field: str, why: str) -> NoReturn:
        raise InvalidInput(f"{self.PREFIX}{field.upper()}={getattr(self, field)!r} {why}")


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
