"""Target `kubernetes` with a real API server and its controllers, and no more rights than the chart
gives.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import yaml

from gateway.config import GatewayConfig
from gateway.kubernetes import names, rbac
from gateway.targets import NOT_YET, Process, ProcessSpec
from gateway.targets.kubernetes import KubernetesTarget, create
from services.kit.discovery import Role
from services.kit.errors import Conflict, EmbermeshError, InvalidInput, NotFound
from tests.data import ROOT
from tests.fixtures.kubernetes_api import Kubelet, Namespace, wait_until
from tests.fixtures.kubernetes_objects import JOB, processes

# The first test waits for the server to start: minutes on a busy machine.
pytestmark = pytest.mark.timeout(400)
TRAINER = (Role.TRAINER, 0)
PLACES = {(Role.SPARSE_PS, 0), (Role.SPARSE_PS, 1), (Role.DENSE_PS, 0), TRAINER, (Role.TRAINER, 1)}
OTHER_RESOURCES = {
    "": ["secrets", "serviceaccounts", "nodes", "namespaces", "events", "endpoints", "pods/exec"],
    "apps": ["deployments", "daemonsets", "statefulsets/scale"],
    "rbac.authorization.k8s.io": ["roles", "rolebindings", "clusterroles"],
    "batch": ["jobs"],
}
VERBS = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]


@pytest.fixture
def target(kubernetes_namespace: Namespace) -> KubernetesTarget:
    return create(GatewayConfig(stop_seconds=2.0))


@pytest.fixture
def kubelet(kubernetes_namespace: Namespace) -> Kubelet:
    return Kubelet(kubernetes_namespace)


def by_place(target: KubernetesTarget, generation: int = 1) -> dict[tuple[Role, int], Process]:
    """Processes without places that wait."""
    seen = target.observe(JOB, generation)
    return {(p.role, p.rank): p for p in seen if p.incarnation != NOT_YET}


def grants(namespace: Namespace) -> dict[str, str | None]:
    """Of each pod the incarnation it may run."""
    return {
        name: pod["metadata"].get("annotations", {}).get(names.GRANT)
        for name, pod in namespace.pods().items()
    }


def run(
    target: KubernetesTarget, kubelet: Kubelet, specs: list[ProcessSpec], fence: int = 1
) -> None:
    """Starts, as the reconciler does, until all are there."""
    wanted = {(s.role, s.rank): s.incarnation for s in specs}

    def all_there() -> bool:
        target.start(specs, fence)
        kubelet.look()
        seen = by_place(target, specs[0].generation)
        return {place: p.incarnation for place, p in seen.items() if p.alive} == wanted

    wait_until(all_there, "all processes are there")


def test_a_generation_from_start_to_stop(
    target: KubernetesTarget, kubelet: Kubelet, kubernetes_namespace: Namespace
) -> None:
    namespace = kubernetes_namespace
    assert target.observe(JOB, 1) == []
    run(target, kubelet, processes())
    before = [
        (p["metadata"]["uid"], p["metadata"]["resourceVersion"]) for p in namespace.list("pods")
    ]
    target.start(processes(), 1)  # nothing is left to do
    after = [
        (p["metadata"]["uid"], p["metadata"]["resourceVersion"]) for p in namespace.list("pods")
    ]
    assert before == after
    assert by_place(target).keys() == PLACES
    look = target.survey()
    assert look(JOB, 1) == target.observe(JOB, 1)
    assert look("another", 1) == look(JOB, 2) == []
    assert len(namespace.list("statefulsets")) == len(namespace.list("services")) == 3
    kubelet.stubborn = True
    target.stop(JOB, 1, kill=False, fence=1)
    assert all("deletionTimestamp" in p["metadata"] for p in namespace.list("pods"))
    assert all(p.alive for p in by_place(target).values())
    target.stop(JOB, 1, kill=False, fence=1)
    target.stop(JOB, 1, kill=True, fence=1)
    wait_until(lambda: not any(p.alive for p in target.observe(JOB, 1)), "no process is left")
    wait_until(lambda: not namespace.list("statefulsets"))
    with pytest.raises(NotFound, match=r"trainer 0 of job .* has no pod any more"):
        target.logs(JOB, 1, Role.TRAINER, 0, 10)


def test_a_pod_that_kubernetes_brings_back_waits_for_the_next_incarnation(
    target: KubernetesTarget, kubelet: Kubelet, kubernetes_namespace: Namespace
) -> None:
    namespace = kubernetes_namespace
    run(target, kubelet, processes())
    first = namespace.pods()["trainer-1"]["metadata"]
    namespace.admin("DELETE", namespace.path("pods", first["name"]))
    kubelet.look()
    wait_until(
        lambda: (
            namespace.pods().get("trainer-1", {"metadata": first})["metadata"]["uid"]
            != first["uid"]
        )
    )
    gone = by_place(target)[Role.TRAINER, 1]
    assert gone == Process(Role.TRAINER, 1, False, None, "its pod was deleted")
    target.start(processes(), 1)  # the same wish as before begins nothing again
    kubelet.look()
    assert grants(namespace)["trainer-1"] is None
    assert by_place(target)[Role.TRAINER, 1] == gone
    run(target, kubelet, processes(incarnations=(0, 1)))
    assert grants(namespace) == {
        "sparse-ps-0": "0",
        "sparse-ps-1": "0",
        "dense-ps-0": "0",
        "trainer-0": "0",
        "trainer-1": "1",
    }


def test_how_a_process_ended_is_seen_and_its_pod_replaced(
    target: KubernetesTarget, kubelet: Kubelet, kubernetes_namespace: Namespace
) -> None:
    namespace = kubernetes_namespace
    run(target, kubelet, processes())
    before = namespace.pods()["trainer-0"]["metadata"]
    state = {"exitCode": 2, "reason": "Error", "message": "I5: no such column"}
    kubelet.report(before["name"], {"running": {}}, {"terminated": state}, restarts=1)
    ended = by_place(target)[TRAINER]
    assert ended == Process(*TRAINER, False, 2, "I5: no such column")
    run(target, kubelet, processes(incarnations=(1, 0)))
    assert namespace.pods()["trainer-0"]["metadata"]["uid"] != before["uid"]


def test_a_new_generation_removes_the_old_ones_objects_and_an_old_leader_is_refused(
    target: KubernetesTarget, kubelet: Kubelet, kubernetes_namespace: Namespace
) -> None:
    run(target, kubelet, processes(), fence=3)
    with pytest.raises(Conflict, match="token 2 is older than 3; another gateway leads"):
        target.stop(JOB, 1, kill=True, fence=2)
    with pytest.raises(Conflict, match="another gateway leads"):
        target.start(processes(generation=2), fence=2)
    assert all(p.alive for p in by_place(target).values())
    run(target, kubelet, processes(generation=2, trainers=3), fence=4)
    with pytest.raises(Conflict, match="is at generation 2, not 1"):
        target.start(processes(), fence=4)

    def only_the_second() -> bool:
        kubelet.look()
        kinds = ("statefulsets", "services", "pods")
        generations = {
            o["metadata"]["labels"]["embermesh.io/generation"]
            for kind in kinds
            for o in kubernetes_namespace.list(kind)
        }
        return generations == {"2"}

    wait_until(only_the_second, "objects of generation 1 are gone")
    assert len(by_place(target, 2)) == 6


def test_what_an_ended_job_leaves_is_removed_by_its_owner(
    target: KubernetesTarget, kubelet: Kubelet, kubernetes_namespace: Namespace
) -> None:
    namespace = kubernetes_namespace
    run(target, kubelet, processes(), fence=2)
    bystander = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bystander"}}
    namespace.admin("POST", namespace.path("configmaps"), bystander)
    target.collect({JOB}, fence=2)
    assert len(by_place(target)) == 5
    with pytest.raises(Conflict, match="another gateway leads"):
        target.collect(set(), fence=1)
    target.collect(set(), fence=2)

    def nothing_left() -> bool:
        kubelet.look()
        kinds = ("configmaps", "services", "statefulsets", "pods")
        return not any(namespace.list(kind) for kind in kinds)

    wait_until(nothing_left, "nothing of the job is left")
    assert namespace.list("configmaps", "")  # others stay


def test_another_instances_jobs_are_none_of_our_business(
    target: KubernetesTarget,
    kubelet: Kubelet,
    kubernetes_namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run(target, kubelet, processes())
    monkeypatch.setenv("EMBERMESH_KUBERNETES_INSTANCE", "another")
    create(GatewayConfig()).collect(set(), fence=9)
    assert all(p.alive for p in by_place(target).values())
    assert len(kubernetes_namespace.list("statefulsets")) == 3


def test_the_role_allows_what_is_used_and_nothing_else(kubernetes_namespace: Namespace) -> None:
    namespace = kubernetes_namespace
    allowed = {
        (group, resource, verb)
        for rule in rbac.RULES
        for group, resource, verb in itertools.product(
            rule["apiGroups"], rule["resources"], rule["verbs"]
        )
    }
    asked = {(group, resource) for group, resource, _ in allowed}
    asked |= {(g, r) for g, resources in OTHER_RESOURCES.items() for r in resources}
    granted = set()
    for (group, resource), verb in itertools.product(sorted(asked), VERBS):
        plural, _, sub = resource.partition("/")
        attributes = {
            "namespace": namespace.name,
            "group": group,
            "resource": plural,
            "subresource": sub,
            "verb": verb,
        }
        user = f"system:serviceaccount:{namespace.name}:gateway"
        review: dict[str, Any] = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        if namespace.admin("POST", path, review)["status"]["allowed"]:
            granted.add((group, resource, verb))
    assert granted == allowed
    for path in (
        namespace.path("secrets"),
        "/api/v1/namespaces/default/pods",
        "/api/v1/nodes",
    ):
        assert namespace.admin.status("GET", path, namespace.token) == 403
    assert namespace.admin.status("GET", namespace.path("pods"), namespace.token) == 200


def test_every_right_of_the_role_is_used(
    target: KubernetesTarget, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: set[tuple[str, str]] = set()
    send = target._api._send

    def noted(method: str, path: str, *rest: Any) -> bytes:
        _, _, resource = path.partition("/namespaces/")
        _, plural, *name = resource.split("/")
        kind = "pods/log" if name[1:] == ["log"] else plural
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(method)
        used.add((kind, verb or ("get" if name else "list")))
        return send(method, path, *rest)

    monkeypatch.setattr(target._api, "_send", noted)
    run(target, kubelet, processes())
    with monkeypatch.context() as hurry, pytest.raises(EmbermeshError, match="log"):
        hurry.setattr(target._api, "_seconds", 1.0)  # there is no kubelet that has the log
        target.logs(JOB, 1, Role.TRAINER, 0, 10)
    run(target, kubelet, processes(generation=2), fence=2)
    target.stop(JOB, 2, kill=True, fence=2)
    target.collect(set(), fence=2)
    allowed = {
        (resource, verb)
        for rule in rbac.RULES
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert used == allowed


def test_the_chart_carries_the_same_rules() -> None:
    file = ROOT / "helm" / "embermesh" / "files" / "rbac-rules.yaml"
    assert yaml.safe_load(file.read_text()) == rbac.RULES


def test_a_job_that_can_not_be_made_is_refused_by_name(
    target: KubernetesTarget, kubernetes_namespace: Namespace
) -> None:
    around = [dataclasses.replace(s, env={**s.env, "not a name": "x"}) for s in processes()]
    with pytest.raises(InvalidInput, match=r"Kubernetes: POST .*configmaps: .*not a name"):
        target.start(around, 1)
    assert kubernetes_namespace.list("statefulsets") == []
