"""An API server of one namespace that stores objects and does nothing with them: no controllers, no
pods but those a test puts there. It counts requests, which is what it is for; what a real server
does is asked of one in tests/integration/test_kubernetes_target.py.
"""

from __future__ import annotations

import collections
import http.server
import itertools
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml
from kubernetes.client.exceptions import ApiException

Object = dict[str, Any]
_PATH = re.compile(r"/namespaces/[^/]+/(\w+)(?:/([^/]+))?$")


class ObjectStore:
    """`send` is what gateway.kubernetes.api.Api takes. Thread-safe."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}  # (plural, name) -> object
        self.requests: collections.Counter[tuple[str, str]] = collections.Counter()
        self.logs: dict[str, str] = {}  # pod -> what it wrote
        self.refuses = 0  # HTTP status that every request is answered with; 0: none
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def put(self, plural: str, document: Object) -> None:
        """Stores the object as it is, with a uid and a version."""
        meta = document["metadata"]
        meta["resourceVersion"] = str(next(self._numbers))
        meta.setdefault("uid", f"uid-{meta['resourceVersion']}")
        self.objects[plural, meta["name"]] = document

    def send(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: Object | None,
        content: str,
        seconds: float,
    ) -> bytes:
        if path.endswith("/log"):
            self.requests[method, "pods/log"] += 1
            return self.logs[path.split("/")[-2]].encode()
        status, answer = self.answer(method, path, query, body)
        if status >= 300:
            error = ApiException(status=status, reason="refused")
            error.body = json.dumps(answer)
            error.headers = {}
            raise error
        return json.dumps(answer).encode()

    def answer(
        self, method: str, path: str, query: dict[str, str], body: Object | None
    ) -> tuple[int, Object]:
        """Status and document."""
        found = _PATH.search(path)
        assert found is not None, path
        plural, name = found[1], found[2] or ""
        with self._lock:
            self.requests[method, plural if name else f"{plural}, all"] += 1
            if self.refuses:
                return self.refuses, {"message": "refused by the test"}
            if method == "POST" and body is not None:
                return self._create(plural, body)
            if not name:
                return 200, {"items": self._listed(plural, query.get("labelSelector", ""))}
            if (plural, name) not in self.objects:
                return 404, {"message": f"{plural} {name} not found"}
            return self._one(method, plural, name, body or {})

    def _create(self, plural: str, body: Object) -> tuple[int, Object]:
        if (plural, body["metadata"]["name"]) in self.objects:
            return 409, {"message": "it is there"}
        self.put(plural, body)
        return 201, body

    def _one(self, method: str, plural: str, name: str, body: Object) -> tuple[int, Object]:
        present = self.objects[plural, name]
        if method == "DELETE":
            return 200, self.objects.pop((plural, name))
        if method == "PUT":
            if body["metadata"].get("resourceVersion") != present["metadata"]["resourceVersion"]:
                return 409, {"message": "it has changed"}
            self.put(plural, body)
            return 200, body
        if method == "PATCH":
            present["metadata"].setdefault("annotations", {}).update(
                body["metadata"]["annotations"]
            )
            self.put(plural, present)
        return 200, present

    def _listed(self, plural: str, selector: str) -> list[Object]:
        wanted = [part for part in selector.split(",") if part]
        return [
            document
            for (kind, _), document in sorted(self.objects.items())
            if kind == plural
            and all(_matches(document["metadata"].get("labels", {}), part) for part in wanted)
        ]


def _matches(labels: dict[str, str], requirement: str) -> bool:
    if requirement.startswith("!"):
        return requirement[1:] not in labels
    key, equals, value = requirement.partition("=")
    return labels.get(key) == value if equals else key in labels


@contextmanager
def served(store: ObjectStore, kubeconfig: Path) -> Iterator[None]:
    """The store over HTTP on loopback, for a gateway in a process of its own: `kubeconfig` leads
    there.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            url = urlsplit(self.path)
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.loads(text) if text else None
            status, document = store.answer(
                self.command, url.path, dict(parse_qsl(url.query)), body
            )
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
                ],
                "users": [{"name": "gateway", "user": {"token": "t"}}],
                "contexts": [
                    {"name": "c", "context": {"cluster": "c", "user": "gateway", "namespace": "t"}}
                ],
                "current-context": "c",
            }
        )
    )
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
