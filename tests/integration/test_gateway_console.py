"""The console's files over real HTTP: complete, closed to what is foreign, no part of the API."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis

from gateway import console
from tests.data import ROOT
from tests.integration.gateway_closed import CLOSED
from tests.integration.gateway_harness import Harness, problem, running_gateway

ASSETS = ROOT / "gateway" / "assets"
FILES = sorted(ASSETS.iterdir())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]


@pytest.fixture
def harness(redis_db: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[Harness]:
    with running_gateway(redis_url, tmp_path, CLOSED) as harness:
        yield harness


def test_the_page_and_its_files_need_no_token_and_carry_the_policy(harness: Harness) -> None:
    page = harness.http.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    names = re.findall(r'(?:href|src)="(console/[^"]+)"', page.text)
    assert {"console/app.js", "console/base.css", "console/parts.css"} <= set(names)
    answers = [page, *(harness.http.get(f"/console/{path.name}") for path in FILES)]
    for answer in answers:
        assert answer.status_code == httpx.codes.OK, answer.url
        assert answer.headers["content-security-policy"] == console.POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-cache"
    assert len(answers) == len(console.assets()) + 1
    script = harness.http.get("/console/app.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    for source in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"):
        assert source in console.POLICY
    assert "unsafe" not in console.POLICY


def test_a_browser_that_has_a_file_does_not_get_it_again(harness: Harness) -> None:
    etag = harness.http.get("/console/app.js").headers["etag"]
    again = harness.http.get("/console/app.js", headers={"If-None-Match": f'"other", W/{etag}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == console.POLICY
    assert harness.http.get("/console/app.js", headers={"If-None-Match": '"other"'}).is_success


@pytest.mark.parametrize("name", ["nothing.js", "..%2f..%2fapp.py", "%2e%2e", "__init__.py"])
def test_no_other_file_is_served(harness: Harness, name: str) -> None:
    problem(harness.http.get(f"/console/{name}"), 404)


def test_the_console_is_no_part_of_the_schema(harness: Harness) -> None:
    paths = harness.http.get("/openapi.json").json()["paths"]
    assert not [path for path in paths if path == "/" or path.startswith("/console")]
    assert "/v1/me" in paths


def test_who_asks_is_told_who_it_is(harness: Harness) -> None:
    problem(harness.http.get("/v1/me"), 401)


def test_every_imported_module_is_there() -> None:
    for path in SCRIPTS:
        for name in re.findall(r'from "\./([^"]+)"', path.read_text()):
            assert (ASSETS / name).exists(), f"{path.name} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_a_file_is_small_and_asks_nobody_else(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 300
    foreign = [u for u in re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", text) if "//" in u]
    assert set(foreign) <= {"http://www.w3.org/2000/svg"}
    makes_markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    assert not re.search(makes_markup, text)
    if path.suffix == ".html":
        assert not re.search(r"<script>|<style|\sstyle=|\son\w+=|javascript:", text)


@pytest.mark.slow
def test_a_wheel_holds_the_console(tmp_path: Path) -> None:
    """The Python part of the wheel as pip makes it; the extensions are left out for speed."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--config-settings", "wheel.cmake=false", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, timeout=100, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {Path(n).name for n in archive.namelist() if n.startswith("gateway/assets/")}
    assert packed == {path.name for path in FILES}
