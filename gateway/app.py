"""The FastAPI application: its parts are handed in, its routes are in `gateway.routes`; wiring is
here alone.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi

from gateway import problems
from gateway.deps import Gateway
from gateway.metrics import GatewayMetrics, method_label
from gateway.routes import checkpoints, jobs, operations
from services.api.spec import JobSpec
from services.api.views import Problem

_REF = "#/components/schemas/{model}"


def create_app(gateway: Gateway) -> FastAPI:
    """The application over the given parts; the reconciler is started and closed by the caller."""
    app = FastAPI(
        title="Embermesh",
        version=_version(),
        description="Trains click models whose embedding tables live on sharded parameter servers.",
        responses={
            code: {
                "content": {problems.MEDIA_TYPE: {"schema": {"$ref": _REF.format(model="Problem")}}}
            }
            for code in ("4XX", "5XX")
        },
    )
    app.state.gateway = gateway
    problems.install(app)
    for module in (jobs, checkpoints, operations):
        app.include_router(module.router)
    _measure(app, gateway.metrics)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]  # FastAPI's documented way
    return app


def _measure(app: FastAPI, metrics: GatewayMetrics) -> None:
    @app.middleware("http")
    async def measured(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        status, start = 500, time.perf_counter()
        try:
            response = await call_next(request)
            status = response.status_code
            return response
        finally:
            route = getattr(
                request.scope.get("route"), "path", "none"
            )  # the template, never the id
            seconds = metrics.http_seconds.labels(route, method_label(request.method), str(status))
            seconds.observe(time.perf_counter() - start)


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The schema, with the JobSpec as the body of a submission and Problem as the form of every
    error.
    """
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        spec = JobSpec.model_json_schema(ref_template=_REF)
        known = schema.setdefault("components", {}).setdefault("schemas", {})
        known.update(spec.pop("$defs", {}))
        known["JobSpec"] = spec
        known["Problem"] = Problem.model_json_schema(ref_template=_REF)
        form = {"schema": {"$ref": _REF.format(model="JobSpec")}}
        schema["paths"]["/v1/jobs"]["post"]["requestBody"] = {
            "required": True,
            "content": {"application/yaml": form, "application/json": form},
        }
        app.openapi_schema = schema
    return app.openapi_schema


def _version() -> str:
    try:
        return version("embermesh")
    except PackageNotFoundError:
        return "0"
