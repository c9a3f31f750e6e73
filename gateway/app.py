"""The FastAPI application: its parts are handed in, its routes are in `gateway.routes`; wiring is
here alone.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.utils import get_openapi

from gateway import console, problems
from gateway.deps import Gateway
from gateway.middleware import REQUEST_ID, Bounded, Observed
from gateway.routes import access, checkpoints, jobs, operations, stream
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
    for module in (jobs, checkpoints, stream, access, operations):
        app.include_router(module.router)
    app.include_router(console.router())
    # The last one added is the outermost.
    app.add_middleware(Bounded, limit=gateway.access.max_body_bytes)
    if gateway.access.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=gateway.access.origins,
            allow_methods=["*"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "If-Match"],
            expose_headers=["ETag", "Location", "Retry-After", REQUEST_ID],
        )
    app.add_middleware(
        Observed, metrics=gateway.metrics, audit=gateway.audit, traces=gateway.traces
    )
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]  # FastAPI's documented way
    return app


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
        _promise_problems(schema, known)
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


def _promise_problems(schema: dict[str, Any], known: dict[str, Any]) -> None:
    """Takes out FastAPI's own form of a 422, which `gateway.problems` never sends."""
    for verbs in schema["paths"].values():
        for operation in verbs.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        known.pop(name, None)


def _version() -> str:
    try:
        return version("embermesh")
    except PackageNotFoundError:
        return "0"
