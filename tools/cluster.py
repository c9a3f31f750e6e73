"""A real Kubernetes with one node for `make e2e-k8s`: deploy/cluster on an engine of
deploy/engine, with names (tools/cluster_dns) and volumes. Knows nothing of Embermesh.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient

from tools.stages import ROOT, StageFailed, run, until

SCRIPT = ROOT / "deploy" / "cluster" / "cluster.sh"
_BUILD_SECONDS, _UP_SECONDS, _DOWN_SECONDS = 3600.0, 600.0, 120.0
_CALL_SECONDS = 20.0
# What Kubernetes itself puts into every namespace, and what tells of the past.
_OF_KUBERNETES = {"default", "kube-root-ca.crt"}
_HISTORY = {"Event", "PodMetrics"}


class Cluster:
    """One cluster below `folder`; `env` leads docker to the engine its node uses."""

    def __init__(self, folder: Path, namespace: str, env: dict[str, str]) -> None:
        self.folder, self.namespace, self.env = folder, namespace, env
        self.kubeconfig = folder / "kubeconfig"
        self._names = folder / "names.pid"
        self._api: Any = None  # before `up` is done

    def up(self) -> str:
        """Builds what is not in the cache, starts everything; the version of Kubernetes."""
        run([SCRIPT, "build"], env=self.env, seconds=_BUILD_SECONDS)
        address = self._bridge_address()
        env = {**self.env, "EMBERMESH_CLUSTER_DNS": address}
        run([SCRIPT, "up", "--node", self.folder], env=env, seconds=_UP_SECONDS)
        with (self.folder / "dns.log").open("wb") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "tools.cluster_dns", self.kubeconfig, address],
                cwd=ROOT,
                env=self.env,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._names.write_text(str(server.pid))
        self._api = config.new_client_from_config(str(self.kubeconfig))
        self.core, self.apps = client.CoreV1Api(self._api), client.AppsV1Api(self._api)
        version: str = client.VersionApi(self._api).get_code().git_version
        return version

    def add_volume(self, name: str, size: str, mode: str) -> None:
        """A folder of the node that the next claim of that size and mode gets."""
        path = self.folder / "volumes" / name
        path.mkdir(parents=True)
        path.chmod(0o777)  # pods run as different users, none of them root
        spec = client.V1PersistentVolumeSpec(
            capacity={"storage": size},
            access_modes=[mode],
            persistent_volume_reclaim_policy="Retain",
            host_path=client.V1HostPathVolumeSource(path=str(path)),
        )
        volume = client.V1PersistentVolume(metadata=client.V1ObjectMeta(name=name), spec=spec)
        self.core.create_persistent_volume(volume, _request_timeout=_CALL_SECONDS)

    def service_url(self, name: str) -> str:
        """Of a service with a cluster IP; kube-proxy makes it work on this machine as well."""
        found = self.core.read_namespaced_service(
            name, self.namespace, _request_timeout=_CALL_SECONDS
        )
        return f"http://{found.spec.cluster_ip}:{found.spec.ports[0].port}"

    def pods(self, selector: str) -> dict[str, Any]:
        """Pods that are not going away, by name."""
        found = self.core.list_namespaced_pod(
            self.namespace, label_selector=selector, _request_timeout=_CALL_SECONDS
        )
        return {p.metadata.name: p for p in found.items if not p.metadata.deletion_timestamp}

    def stateful_sets(self, selector: str) -> dict[str, tuple[int, int]]:
        """Name -> (pods wanted, pods ready)."""
        found = self.apps.list_namespaced_stateful_set(
            self.namespace, label_selector=selector, _request_timeout=_CALL_SECONDS
        )
        return {
            s.metadata.name: (s.spec.replicas, s.status.ready_replicas or 0) for s in found.items
        }

    def kill(self, pod: str) -> None:
        """Ends the pod without asking it."""
        self.core.delete_namespaced_pod(
            pod, self.namespace, grace_period_seconds=0, _request_timeout=_CALL_SECONDS
        )

    def objects(self) -> list[str]:
        """Every object of every kind in the namespace, but what Kubernetes puts there itself."""
        return sorted(self._objects())

    def _objects(self) -> Iterator[str]:
        dynamic = DynamicClient(self._api)
        for resource in dynamic.resources.search(preferred=True):
            if not resource.namespaced or "list" not in resource.verbs:
                continue
            if resource.kind.endswith("List") or resource.kind in _HISTORY:
                continue
            try:
                listed = resource.get(namespace=self.namespace, _request_timeout=_CALL_SECONDS)
            except ApiException as error:
                if error.status in (404, 405):
                    continue  # a kind that can't be listed after all
                raise
            for found in listed.items:
                name = found.metadata.name
                if name not in _OF_KUBERNETES and not name.startswith("default-token-"):
                    yield f"{resource.kind}/{name}"

    def tell(self) -> str:
        """What every pod says of itself, for whoever looks for a failure."""
        lines: list[str] = []
        if self._api is None:
            return ""
        for name, pod in self.pods("").items():
            for state in pod.status.container_statuses or []:
                lines.append(f"--- {name}: ready {state.ready}, {state.restart_count} restarts")
                now = state.state
                lines.append(str(now.waiting or now.terminated or "running"))
                try:
                    lines.append(
                        self.core.read_namespaced_pod_log(
                            name, self.namespace, tail_lines=25, _request_timeout=_CALL_SECONDS
                        )
                    )
                except ApiException as error:
                    lines.append(f"no log: {error.status}")
        return "\n".join(lines) + "\n"

    def down(self) -> None:
        """Stops everything that `up` started."""
        if self._names.exists():
            _end(int(self._names.read_text()))
        run([SCRIPT, "down", self.folder], env=self.env, seconds=_DOWN_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def is_clean(self, seconds: float) -> None:
        """Waits until the namespace is empty. Raises StageFailed with what is left."""
        try:
            until(lambda: not self.objects(), seconds=seconds, what="an empty namespace", pause=2)
        except StageFailed as error:
            raise StageFailed(f"{error}; left: {', '.join(self.objects())}") from error

    def _bridge_address(self) -> str:
        """Where pods reach this machine: the first address of the bridge's network."""
        shape = "{{(index .IPAM.Config 0).Subnet}}"
        words = ["docker", "network", "inspect", "bridge", "--format", shape]
        network = ipaddress.ip_network(run(words, env=self.env, seconds=60).strip())
        return str(next(network.hosts()))


def _end(server: int) -> None:
    """Ends the server of names, and nobody who has got its number since."""
    try:
        if b"tools.cluster_dns" in Path(f"/proc/{server}/cmdline").read_bytes():
            os.kill(server, signal.SIGTERM)
    except (FileNotFoundError, ProcessLookupError):
        return
