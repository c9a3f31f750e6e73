"""Writes constraints.txt: the exact version of everything that pyproject.toml leads to.

    .venv/bin/python -m tools.pin python3.10 python3.11

The last interpreter named gives the main pins. Where an older one cannot run that version, its own
pin is added behind a `python_version` marker, so one file serves every supported Python.
Packages resolve afresh, to today's newest; nothing is installed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.requirements import ROOT, requirements

HEADER = """\
# Every version that `make setup` installs. Written by tools/pin.py, which says how; do not edit.
"""


def resolve(interpreter: str, wanted: list[str]) -> tuple[str, dict[str, str]]:
    """What pip would put into an empty environment: the interpreter's "3.x", name -> version."""
    with tempfile.TemporaryDirectory() as scratch:
        venv, report = Path(scratch, "venv"), Path(scratch, "report.json")
        subprocess.run([interpreter, "-m", "venv", str(venv)], check=True)
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--dry-run", "--report", str(report), *wanted], check=True)
        resolved = json.loads(report.read_text())
    pins = {
        re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower(): item["metadata"]["version"]
        for item in resolved["install"]
    }
    return resolved["environment"]["python_version"], pins


def merge(newest: dict[str, str], older: list[tuple[str, dict[str, str]]]) -> list[str]:
    """One line per pin; a version that only an older Python takes is limited to that Python."""
    lines = []
    names = set(newest).union(*(pins for _, pins in older))
    for name in sorted(names):
        markers = []
        for version, pins in older:
            if name in pins and pins[name] != newest.get(name):
                lines.append(f'{name}=={pins[name]}; python_version == "{version}"')
                markers.append(f'python_version != "{version}"')
        if name in newest:
            suffix = f"; {' and '.join(markers)}" if markers else ""
            lines.append(f"{name}=={newest[name]}{suffix}")
    return lines


def main(interpreters: list[str]) -> int:
    if not interpreters:
        sys.stderr.write(f"usage: pin.py PYTHON...\n{__doc__}")
        return 2
    wanted = requirements()
    *older, (_, newest) = [resolve(interpreter, wanted) for interpreter in interpreters]
    lines = merge(newest, older)
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(lines) + "\n")
    sys.stdout.write(f"constraints.txt: {len(lines)} pins\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
