"""What happens to every request around its route, as plain ASGI: a request id, a span, a bound on
the body, a time in the metrics, and a line in the audit log.
"""

from __future__ import annotations

import re
import time
import uuid
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.audit import Audit
from gateway.metrics import GatewayMetrics, method_label
from services.kit import tracing, trail
from services.kit.tracing import Span, Tracing

REQUEST_ID = "X-Request-Id"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Observed:
    """The outermost layer: request id, span, metrics, audit. What the request leads to, here and in
    other processes, belongs to the same id and trace.
    """

    def __init__(
        self, app: ASGIApp, metrics: GatewayMetrics, audit: Audit, traces: Tracing
    ) -> None:
        self._app, self._metrics, self._audit = app, metrics, audit
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get(REQUEST_ID, "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"] = request_id
        brought = {name: headers[name] for name in tracing.HEADERS if name in headers}
        span = self._traces.span(scope["method"], kind="server", carried=brought)
        with trail.following(request_id=request_id), span as working:
            await self._observed(scope, receive, send, request_id, working)

    async def _observed(
        self, scope: Scope, receive: Receive, send: Send, request_id: str, span: Span
    ) -> None:
        status, start = 500, time.perf_counter()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            seconds = time.perf_counter() - start
            route = getattr(scope.get("route"), "path", "none")  # the template, never the id
            labels = (route, method_label(scope["method"]), str(status))
            self._metrics.http_seconds.labels(*labels).observe(seconds)
            self._audit.record(scope, route, status, seconds)
            span.rename(f"{labels[1]} {route}")
            span.note({"http.route": route, "http.response.status_code": status})
            if status >= 500:
                span.fail(f"answered with {status}")


class Bounded:
    """Refuses a body above `limit` bytes: at once when its length is told, else where it passes."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        told = Headers(scope=scope).get("content-length", "")
        refused, taken = told.isdecimal() and int(told) > self._limit, 0

        async def receiving() -> Message:
            nonlocal taken
            if refused:
                raise self._refusal()
            message = await receive()
            if message["type"] == "http.request":
                taken += len(message.get("body", b""))
                if taken > self._limit:  # its length was not told, or not truly
                    raise self._refusal()
            return message

        await self._app(scope, receiving, send)

    def _refusal(self) -> HTTPException:
        # Not of our own family: FastAPI takes other errors of a body for malformed JSON.
        return HTTPException(413, f"the body is larger than {self._limit} bytes")
