"""Calls to the API: what is repeated, until when, and as which of our errors a refusal comes."""

from __future__ import annotations

import json
from typing import Any

import prometheus_client
import pytest
import urllib3
from kubernetes.client.exceptions import ApiException

from gateway.kubernetes import rbac
from gateway.kubernetes.api import CONFIG_MAPS, PODS, SERVICES, STATEFUL_SETS, Api, connect
from gateway.kubernetes.config import KubernetesConfig
from gateway.kubernetes.metrics import ApiMetrics
from services.kit.errors import (
    Conflict,
    EmbermeshError,
    Forbidden,
    InvalidInput,
    NotFound,
    Unauthenticated,
    Unavailable,
)


def refusal(status: int, message: str = "", **headers: str) -> ApiException:
    error = ApiException(status=status, reason="because")
    error.body = json.dumps({"kind": "Status", "message": message}) if message else None
    error.headers = headers
    return error


class Server:
    """Answers with what it was given, one after the other; time passes by pauses alone."""

    def __init__(self, *answers: Exception | bytes) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[Any, ...]] = []
        self.now = 0.0
        self.api = Api(self.send, "jobs", 10.0, pause=self.pause, clock=lambda: self.now)

    def send(self, *call: Any) -> bytes:
        self.calls.append(call)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def pause(self, seconds: float) -> None:
        self.now += seconds


BUSY: list[Exception] = [
    refusal(429),
    refusal(500),
    refusal(503),
    refusal(504),
    urllib3.exceptions.ReadTimeoutError(None, "/", "slow"),  # type: ignore[arg-type]
    urllib3.exceptions.MaxRetryError(None, "/", OSError("refused")),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("trouble", BUSY, ids=repr)
def test_a_busy_server_is_asked_again_until_the_deadline(trouble: Exception) -> None:
    server = Server(trouble, trouble, b'{"items": [{"a": 1}]}')
    assert server.api.list(PODS, "a=b") == [{"a": 1}]
    assert len(server.calls) == 3
    lasting = Server(trouble)
    with pytest.raises(Unavailable, match=r"Kubernetes: GET .*/jobs/pods: .*within 10 s"):
        lasting.api.list(PODS, "a=b")
    assert 5 < lasting.now <= 10
    assert len(lasting.calls) < 20  # with growing pauses
    left = [call[-1] for call in lasting.calls]
    assert left == sorted(left, reverse=True) and left[0] == 10.0


def test_a_server_that_says_when_is_obeyed() -> None:
    server = Server(refusal(429, **{"Retry-After": "3"}), b"{}")
    server.api.get(CONFIG_MAPS, "a")
    assert server.now == 3.0


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidInput),
        (401, Unauthenticated),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (422, InvalidInput),
    ],
)
def test_a_refusal_is_not_repeated_and_says_why(status: int, kind: type[EmbermeshError]) -> None:
    server = Server(refusal(status, "spec.replicas: must not be -1"))
    with pytest.raises(kind, match=r"PUT /apis/apps/v1/namespaces/jobs/statefulsets/a: spec\.rep"):
        server.api.replace(STATEFUL_SETS, {"metadata": {"name": "a"}})
    assert len(server.calls) == 1 and server.now == 0


def test_every_request_is_counted_by_its_answer() -> None:
    registry = prometheus_client.CollectorRegistry()
    server = Server(refusal(503), BUSY[-1], refusal(409))
    server.api.watch(ApiMetrics(registry).answered)
    with pytest.raises(Conflict):
        server.api.create(PODS, {})
    server.answers = [b"{}"]
    server.api.get(PODS, "a")

    def count(method: str, status: str) -> float | None:
        labels = {"method": method, "status": status}
        return registry.get_sample_value("embermesh_kubernetes_request_seconds_count", labels)

    seen = [count("POST", status) for status in ("503", "none", "409", "200")]
    assert (seen, count("GET", "200")) == ([1, 1, 1, None], 1)


def test_a_deletion_names_what_it_is_about_and_is_content_when_that_is_gone() -> None:
    server = Server(refusal(404))
    server.api.delete(PODS, "a", "uid-1", version="7", grace=0)
    ((method, path, _, body, _, _),) = server.calls
    assert (method, path) == ("DELETE", "/api/v1/namespaces/jobs/pods/a")
    assert body["preconditions"] == {"uid": "uid-1", "resourceVersion": "7"}
    assert (body["gracePeriodSeconds"], body["propagationPolicy"]) == (0, "Background")


def test_an_annotation_is_for_one_version_of_one_object() -> None:
    server = Server(b"{}")
    server.api.annotate(PODS, "a", "uid-1", "7", {"k": "v"})
    ((method, _, _, body, content, _),) = server.calls
    assert (method, content) == ("PATCH", "application/merge-patch+json")
    meta = {"uid": "uid-1", "resourceVersion": "7", "annotations": {"k": "v"}}
    assert body == {"metadata": meta}


def test_outside_a_cluster_a_kubeconfig_must_be_named(tmp_path: Any) -> None:
    with pytest.raises(InvalidInput, match="set EMBERMESH_KUBERNETES_KUBECONFIG"):
        connect(KubernetesConfig())
    with pytest.raises(InvalidInput, match="EMBERMESH_KUBERNETES_KUBECONFIG"):
        connect(KubernetesConfig(kubeconfig=str(tmp_path / "none")))


def test_the_role_names_nothing_that_no_call_needs() -> None:
    """Every resource of the rules is one that the client knows, every verb one of its methods."""
    verbs = {"get", "list", "create", "update", "patch", "delete"}
    resources = {k.plural for k in (CONFIG_MAPS, PODS, SERVICES, STATEFUL_SETS)} | {"pods/log"}
    for rule in rbac.RULES:
        assert set(rule["verbs"]) <= verbs and "*" not in rule["apiGroups"]
        assert set(rule["resources"]) <= resources
