"""Prints what pyproject.toml requires, one a line: of the build, the package and all extras; or of
the package and the extras named as arguments.

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


def requirements_of(extras: list[str]) -> list[str]:
    """What the package needs at run time with these extras, and those they name. KeyError for an
    extra that doesn't exist.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found, waiting, seen = list(project["dependencies"]), list(extras), set(extras)
    while waiting:
        for line in project["optional-dependencies"][waiting.pop()]:
            if line.startswith("embermesh["):
                named = set(line[len("embermesh[") : -1].split(",")) - seen
                waiting += sorted(named)
                seen |= named
            else:
                found.append(line)
    return sorted(set(found))


if __name__ == "__main__":
    wanted = requirements_of(sys.argv[1:]) if sys.argv[1:] else requirements()
    sys.stdout.write("\n".join(wanted) + "\n")
