"""The Kubernetes API of one namespace, as far as the target uses it: objects as the JSON they are,
errors as ours. What a gateway may do there is in `rbac`; nothing else is asked for.

A call that meets a busy or faulty server, or none, is repeated until `seconds` are over; that is
safe, for every write names the version or the uid it is about, or a name that can exist only once.
"""

from __future__ import annotations

import dataclasses
import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import kubernetes
import urllib3
from kubernetes.client.exceptions import ApiException

from gateway.kubernetes.config import KubernetesConfig
from services.kit.errors import (
    Conflict,
    EmbermeshError,
    Forbidden,
    InvalidInput,
    NotFound,
    Unauthenticated,
    Unavailable,
)

Object = dict[str, Any]
Send = Callable[[str, str, dict[str, str], Object | None, str, float], bytes]
"""(method, path, query, body, content type, seconds) -> the answer's body."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds between tries
_LEAST_SECONDS = 0.05  # for a try
_LOG_SECONDS = 4.0  # for a pod's log
_JSON, _MERGE = "application/json", "application/merge-patch+json"
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_REFUSALS: dict[int, type[EmbermeshError]] = {
    400: InvalidInput,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    422: InvalidInput,
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A resource: `group` as in RBAC, `prefix` as in paths."""

    group: str
    prefix: str
    plural: str


CONFIG_MAPS = Kind("", "/api/v1", "configmaps")
SERVICES = Kind("", "/api/v1", "services")
PODS = Kind("", "/api/v1", "pods")
STATEFUL_SETS = Kind("apps", "/apis/apps/v1", "statefulsets")


class Api:
    """Thread-safe. Every method raises the error family's classes; Unavailable when the server
    could not be made to answer in time.
    """

    def __init__(
        self,
        send: Send,
        namespace: str,
        seconds: float,
        pause: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send, self._namespace, self._seconds = send, namespace, seconds
        self._pause, self._clock = pause or threading.Event().wait, clock
        self._answered: Callable[[str, int, float], None] | None = None

    def watch(self, answered: Callable[[str, int, float], None]) -> None:
        """From now on tells of every request: method, status (0: no answer), seconds."""
        self._answered = answered

    def get(self, kind: Kind, name: str) -> Object:
        """The object. Raises NotFound."""
        return self._call("GET", self._path(kind, name))

    def list(self, kind: Kind, selector: str) -> list[Object]:
        """All objects with the labels."""
        found = self._call("GET", self._path(kind), {"labelSelector": selector})
        return list(found.get("items") or [])

    def create(self, kind: Kind, document: Object) -> Object:
        """Makes the object; returns it as it is stored. Raises Conflict when its name is taken."""
        return self._call("POST", self._path(kind), body=document)

    def replace(self, kind: Kind, document: Object) -> Object:
        """Writes over the version that `document` names. Raises Conflict when that is not the
        present one, NotFound when the object is gone.
        """
        return self._call("PUT", self._path(kind, document["metadata"]["name"]), body=document)

    def annotate(
        self, kind: Kind, name: str, uid: str, version: str, annotations: Mapping[str, str]
    ) -> None:
        """Adds annotations to that version of that very object. Raises Conflict, NotFound."""
        meta = {"uid": uid, "resourceVersion": version, "annotations": dict(annotations)}
        path = self._path(kind, name)
        self._call("PATCH", path, body={"metadata": meta}, content=_MERGE)

    def delete(
        self,
        kind: Kind,
        name: str,
        uid: str,
        *,
        version: str | None = None,
        grace: int | None = None,
    ) -> None:
        """Deletes that very object (in that version) and in the background all that it owns; one
        that is gone already is no error. `grace` in seconds; 0 kills. Raises Conflict when another
        one, or another version, has the name.
        """
        conditions = {"uid": uid} if version is None else {"uid": uid, "resourceVersion": version}
        options: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": conditions,
            "propagationPolicy": "Background",
        }
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            self._call("DELETE", self._path(kind, name), body=options)
        except NotFound:
            return

    def log(self, pod: str, container: str, tail: int, *, previous: bool) -> str:
        """The last `tail` lines of a container, of its `previous` run if asked. Raises NotFound
        when there is no such pod, InvalidInput when the container has not begun. It is the node
        that answers, which may be what is broken: so it gets a shorter time than other calls.
        """
        query = {"container": container, "tailLines": str(tail), "previous": str(previous).lower()}
        path, seconds = f"{self._path(PODS, pod)}/log", min(self._seconds, _LOG_SECONDS)
        return self._send_until("GET", path, query, seconds=seconds).decode(errors="replace")

    def _path(self, kind: Kind, name: str = "") -> str:
        path = f"{kind.prefix}/namespaces/{quote(self._namespace)}/{kind.plural}"
        return f"{path}/{quote(name)}" if name else path

    def _call(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Object | None = None,
        content: str = _JSON,
    ) -> Object:
        answer: Object = json.loads(self._send_until(method, path, query or {}, body, content))
        return answer

    def _send_until(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: Object | None = None,
        content: str = _JSON,
        seconds: float | None = None,
    ) -> bytes:
        seconds = self._seconds if seconds is None else seconds
        end, pause = self._clock() + seconds, _FIRST_PAUSE
        while True:
            left = max(_LEAST_SECONDS, end - self._clock())
            try:
                return self._try(method, path, query, body, content, left)
            except ApiException as error:
                refusal = _REFUSALS.get(error.status)
                if refusal is not None:
                    raise refusal(f"Kubernetes: {method} {path}: {_said(error)}") from error
                trouble, wanted = _said(error), _retry_after(error)
            except urllib3.exceptions.HTTPError as error:
                trouble, wanted = f"{type(error).__name__}: {error}", 0.0
            pause = max(wanted, pause)
            if self._clock() + pause >= end:
                raise Unavailable(f"Kubernetes: {method} {path}: {trouble} (within {seconds:g} s)")
            self._pause(pause * random.uniform(0.5, 1.0) if not wanted else pause)
            pause = min(_LONGEST_PAUSE, 2 * pause)

    def _try(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: Object | None,
        content: str,
        seconds: float,
    ) -> bytes:
        began, status = self._clock(), 0
        try:
            answer = self._send(method, path, query, body, content, seconds)
            status = 200
            return answer
        except ApiException as error:
            status = error.status or 0
            raise
        finally:
            if self._answered is not None:
                self._answered(method, status, self._clock() - began)


def connect(settings: KubernetesConfig) -> Api:
    """The API as the settings say, with the kubeconfig or this pod's own service account. Raises
    InvalidInput when neither is there.
    """
    configuration = kubernetes.client.Configuration()
    configuration.retries = 0  # ours have a deadline
    try:
        if settings.kubeconfig:
            kubernetes.config.load_kube_config(
                settings.kubeconfig, client_configuration=configuration, persist_config=False
            )
            namespace = settings.namespace or _namespace_of(settings.kubeconfig)
        else:
            kubernetes.config.load_incluster_config(client_configuration=configuration)
            namespace = settings.namespace or _own_namespace()
    except (kubernetes.config.ConfigException, OSError) as error:
        raise InvalidInput(
            f"target kubernetes: {error}; outside a cluster set {settings.PREFIX}KUBECONFIG"
        ) from error
    client = kubernetes.client.ApiClient(configuration)

    def send(
        method: str,
        path: str,
        query: dict[str, str],
        body: Object | None,
        content: str,
        seconds: float,
    ) -> bytes:
        answer = client.call_api(
            path,
            method,
            query_params=list(query.items()),
            header_params={"Accept": "application/json, */*", "Content-Type": content},
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=seconds,
        )
        data: bytes = answer.data
        return data

    return Api(send, namespace, settings.request_seconds)


def _namespace_of(kubeconfig: str) -> str:
    _, context = kubernetes.config.list_kube_config_contexts(kubeconfig)
    return str(context["context"].get("namespace", "default"))


def _own_namespace() -> str:
    return _NAMESPACE_FILE.read_text().strip()


def _said(error: ApiException) -> str:
    """The server's own words, if it sent a Status."""
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"


def _retry_after(error: ApiException) -> float:
    try:
        return float((error.headers or {}).get("Retry-After", 0))
    except ValueError:
        return 0.0
