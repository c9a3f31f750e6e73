"""Every failure of the REST API as problem+json (RFC 9457): ours, FastAPI's, and the unexpected."""

from __future__ import annotations

import http
import logging
import math

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from services.api.views import Problem
from services.kit.errors import EmbermeshError, TooManyRequests, Unauthenticated

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"


def install(app: FastAPI) -> None:
    """Adds the handlers."""

    @app.exception_handler(EmbermeshError)
    async def ours(_: Request, error: EmbermeshError) -> JSONResponse:
        if error.http_status >= 500:
            log.warning("%s: %s", type(error).__name__, error)
        lines = str(error).splitlines() if error.http_status == 422 else []
        kind = type(error).__name__
        return answer(error.http_status, kind, str(error), lines, _headers(error))

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        lines = [
            f"{'.'.join(str(p) for p in item['loc'])}: {item['msg']}" for item in error.errors()
        ]
        return answer(422, "InvalidInput", "\n".join(lines), lines)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        title = http.HTTPStatus(error.status_code).phrase
        detail = f"{request.method} {request.url.path}: {error.detail}"
        return answer(error.status_code, title, detail, [], dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return answer(
            500, "Internal Server Error", "unexpected failure; the gateway's log has it", []
        )


def _headers(error: EmbermeshError) -> dict[str, str]:
    if isinstance(error, Unauthenticated):
        return {"WWW-Authenticate": 'Bearer realm="embermesh"'}
    if isinstance(error, TooManyRequests):
        return {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
    return {}


def answer(
    status: int, title: str, detail: str, lines: list[str], headers: dict[str, str] | None = None
) -> JSONResponse:
    """The problem as a response."""
    problem = Problem(title=title, status=status, detail=detail, errors=lines)
    return JSONResponse(problem.model_dump(), status, headers, MEDIA_TYPE)
