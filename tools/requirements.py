"""Prints what pyproject.toml requires, one a line: of the build, the package and all extras.

Runs on the bare standard library of every supported Python (3.10 has no tomllib, pip brings one).
"""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent


def requirements() -> list[str]:
    """Every direct requirement; references to our own extras are left out, for all are listed."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = [*pyproject["build-system"]["requires"], *pyproject["project"]["dependencies"]]
    for extra in pyproject["project"]["optional-dependencies"].values():
        found += [line for line in extra if not line.startswith("embermesh[")]
    return found


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements()) + "\n")
