"""The web console at `/`: a page, its modules and its styles, as they lie in `assets`.

It is a client of the REST API like any other: nothing here reads a job or decides who may see one.
The page is the same for everybody, so it needs no token; it asks for one where the API wants one.
"""

from __future__ import annotations

import dataclasses
import hashlib
from importlib import resources
from pathlib import PurePosixPath
from typing import Annotated

from fastapi import APIRouter, Header, Response

from services.kit.errors import NotFound

PACKAGE, FOLDER = "gateway", "assets"
PAGE = "index.html"
# `require-trusted-types-for` makes the browser refuse every way from a text to markup or code.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # Asked again each time: a new gateway never serves an old page, and a 304 costs nothing.
    "Cache-Control": "no-cache",
}


IfNoneMatch = Annotated[str, Header()]


@dataclasses.dataclass(frozen=True)
class Asset:
    """One file as it is sent."""

    content: bytes
    media_type: str
    etag: str


def assets() -> dict[str, Asset]:
    """Every file of the console by its name."""
    files = resources.files(PACKAGE) / FOLDER
    return {f.name: _asset(f.name, f.read_bytes()) for f in files.iterdir() if _media_type(f.name)}


def router() -> APIRouter:
    """The console's routes over the files as they are now; they are no part of the API's schema."""
    found = assets()
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    def page(if_none_match: IfNoneMatch = "") -> Response:
        return _answer(found[PAGE], if_none_match)

    @routes.get("/console/{name}")
    def file(name: str, if_none_match: IfNoneMatch = "") -> Response:
        if name not in found:
            raise NotFound(f"the console has no file {name!r}")
        return _answer(found[name], if_none_match)

    return routes


def _answer(asset: Asset, known: str) -> Response:
    headers = {**_HEADERS, "ETag": asset.etag}
    if asset.etag in {tag.strip().removeprefix("W/") for tag in known.split(",")}:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)


def _asset(name: str, content: bytes) -> Asset:
    digest = hashlib.sha256(content).hexdigest()[:16]
    return Asset(content, _media_type(name), f'"{digest}"')


def _media_type(name: str) -> str:
    return _TYPES.get(PurePosixPath(name).suffix, "")
