"""What this machine has and lacks: one check per part, each saying how to get what is missing.

Looks only; installs and changes nothing.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

from embermesh import redis_program
from embermesh.client import Client
from services.kit.errors import EmbermeshError

PYTHONS = ((3, 10), (3, 13))  # first and last supported
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
DISK_GIB = 2.0  # free space below which checkpoints soon fail


@dataclasses.dataclass(frozen=True)
class Check:
    """The outcome of one check; `needed` says whether jobs run without it."""

    name: str
    ok: bool
    needed: bool
    found: str
    advice: str = ""


def examine(url: str, folder: Path) -> list[Check]:
    """All checks; `url` is the gateway's, `folder` where a local cluster keeps its files."""
    return [
        python_version(sys.version_info[:3]),
        extensions(),
        redis_server(),
        gateway(url),
        disk(folder),
        program("C++ compiler", ("c++", "g++", "clang++"), "to build; Debian: apt-get install g++"),
        program("CMake", ("cmake",), "to build; Debian: apt-get install cmake"),
        program(
            "Java",
            ("java",),
            "for the Kafka tests; Debian: apt-get install default-jdk-headless",
            "-version",
        ),
        program("Maven", ("mvn",), "for the Kafka tests; Debian: apt-get install maven"),
    ]


def python_version(version: tuple[int, ...]) -> Check:
    """Whether this Python is a supported one."""
    first, last = (".".join(map(str, v)) for v in PYTHONS)
    ok = PYTHONS[0] <= version[:2] <= PYTHONS[1]
    return Check("Python", ok, True, ".".join(map(str, version)), f"use Python {first} to {last}")


def extensions() -> Check:
    """Whether the native code and the generated protobuf code are there."""
    modules = ("ps_service._native", "trainer_service._native", "services.wire.ps_pb2")
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    found = "built" if not missing else f"missing: {', '.join(missing)}"
    return Check("native build", not missing, True, found, "run `make build`")


def redis_server() -> Check:
    """Whether a local cluster could start a Redis."""
    try:
        return Check("Redis server", True, False, redis_program.find())
    except EmbermeshError as error:
        return Check("Redis server", False, False, "none", str(error))


def gateway(url: str) -> Check:
    """Whether the gateway answers and is ready."""
    try:
        with Client(url, timeout=3.0) as client:
            ready = client.ready()
    except EmbermeshError as error:
        return Check("gateway", False, False, str(error), "set EMBERMESH_URL")
    return Check(
        "gateway",
        ready,
        False,
        f"{url} {'ready' if ready else 'does not answer'}",
        "run `embermesh up`",
    )


def disk(folder: Path) -> Check:
    """Free space where a local cluster keeps its files."""
    place = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(place).free / 2**30
    return Check(
        "disk", free >= DISK_GIB, True, f"{free:.1f} GiB free", f"free at least {DISK_GIB:g} GiB"
    )


def program(name: str, candidates: tuple[str, ...], advice: str, flag: str = "--version") -> Check:
    """Whether one of the programs is on the PATH, with the first line it says about itself."""
    path = next(filter(None, map(shutil.which, candidates)), None)
    if path is None:
        return Check(name, False, False, "none", advice)
    return Check(name, True, False, _first_line([path, flag]) or path, advice)


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = _COLORS.sub("", done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else ""
