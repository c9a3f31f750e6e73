"""Dashboards against Grafana's own types (@grafana/schema), by the TypeScript compiler at its
strictest: a misspelt key or a value of the wrong type is an error.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data import ROOT
from tests.fixtures.missing import without

FILES = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
PACKAGES = ROOT / ".cache" / "grafana"
HEAD = "import type {Dashboard} from '@grafana/schema';\n"
OPTIONS = ["--noEmit", "--strict", "--skipLibCheck", "--target", "es2020"]
OPTIONS += ["--module", "esnext", "--moduleResolution", "bundler"]

Check = Callable[[dict[str, Any]], str]


@pytest.fixture
def compile_as_dashboards(tmp_path: Path) -> Check:
    """Compiles documents by name as values of type Dashboard; what the compiler says, empty if it
    is content.
    """
    node = shutil.which("node")
    if node is None or not (PACKAGES / ".complete").exists():
        without("Grafana's types are missing (run `make setup`; it needs npm)")
    (tmp_path / "node_modules").symlink_to(PACKAGES / "node_modules")

    def check(documents: dict[str, Any]) -> str:
        for name, document in documents.items():
            text = f"{HEAD}export const d: Dashboard = {json.dumps(document)};\n"
            (tmp_path / f"{name}.ts").write_text(text)
        compiler = str(PACKAGES / "node_modules" / "typescript" / "bin" / "tsc")
        files = [f"{name}.ts" for name in documents]
        done = subprocess.run(
            [node, compiler, *OPTIONS, *files],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert (done.returncode == 0) == (done.stdout == ""), done.stderr
        return done.stdout

    return check


def test_the_dashboards_are_what_grafana_reads(compile_as_dashboards: Check) -> None:
    assert FILES
    assert compile_as_dashboards({f.stem: json.loads(f.read_text()) for f in FILES}) == ""


def test_a_slip_is_found(compile_as_dashboards: Check) -> None:
    misspelt, wrong = (json.loads(FILES[0].read_text()) for _ in range(2))
    misspelt["panels"][1]["feildConfig"] = misspelt["panels"][1].pop("fieldConfig")
    wrong["graphTooltip"] = "shared"
    words = compile_as_dashboards({"misspelt": misspelt, "wrong": wrong})
    assert "misspelt.ts" in words and "'\"feildConfig\"' does not exist in type" in words
    assert "wrong.ts" in words and "Type 'string' is not assignable" in words
