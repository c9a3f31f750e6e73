"""House rules that no linter checks: sizes, who may do what, what git may hold.

They run on what git tracks or would track (`git ls-files`, untracked and not ignored included).
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data import ROOT

FILE_LINES = 400
FUNCTION_LINES = 60
PACKAGES = ("embermesh", "gateway", "ps_service", "services", "trainer_service")
CPP = {".cc", ".h"}

READS_ENVIRONMENT = {"services/kit/config.py"}
# The retry pause of remote calls; everything else waits on an event or a condition.
SLEEPS = {"services/kit/rpc.py"}
# Importing a package must stay cheap: its __init__ loads none of these.
HEAVY = {
    "boto3",
    "fastapi",
    "grpc",
    "kafka",
    "keras",
    "kubernetes",
    "pyarrow",
    "redis",
    "s3fs",
    "tensorflow",
}
# What ps_service shows to the packages above it.
PS_FACE = {"client", "codec", "embedded", "ranges", "rows", "sharding", "tables"}
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$|\.so$")
# Assembled, so that this file does not break its own rule.
MACHINE_WORDS = [
    re.escape("/" + "work/"),
    re.escape("/" + "root/"),
    r"/home/\w+/",
    re.escape("pypi" + ".org"),
    re.escape("python" + "hosted.org"),
    re.escape("repo.maven." + "apache.org"),
    re.escape("repo1." + "maven.org"),
    re.escape("registry." + "npmjs.org"),
    re.escape("crates" + ".io"),
    re.escape("deb." + "debian.org"),
]


@functools.cache
def repository_files() -> tuple[Path, ...]:
    """Paths relative to the root of every file that is, or with `git add .` would be, in git."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(sorted({Path(name) for name in listed.split("\0") if (ROOT / name).is_file()}))


def python_files(*tops: str) -> list[Path]:
    return [p for p in repository_files() if p.suffix == ".py" and (not tops or p.parts[0] in tops)]


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path))


def text(path: Path) -> str | None:
    """The file's text, None for a binary file."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def imported(module: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every absolute import; `from a import b` counts as a.b."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def attribute_uses(module: ast.Module, owner: str, names: set[str]) -> Iterator[int]:
    """Lines that say owner.name, or import a name from owner."""
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used = {node.attr} if node.value.id == owner else set()
        elif isinstance(node, ast.ImportFrom) and node.module == owner:
            used = {alias.name for alias in node.names}
        else:
            continue
        if used & names:
            yield node.lineno


def places(path: Path, lines: Iterator[int]) -> list[str]:
    return [f"{path}:{line}" for line in lines]


def test_the_listing_sees_this_repository() -> None:
    assert Path("tests/layout/test_layout.py") in repository_files()
    assert Path("services/wire/ps.proto") in repository_files()


def test_no_file_is_longer_than_the_cap() -> None:
    too_long = {}
    for path in repository_files():
        if path.suffix in {".py", *CPP}:
            lines = (ROOT / path).read_text(encoding="utf-8").count("\n")
            if lines > FILE_LINES:
                too_long[str(path)] = lines
    assert not too_long, f"over {FILE_LINES} lines: split by responsibility"


def test_no_function_is_longer_than_the_cap() -> None:
    too_long = []
    for path in python_files():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    too_long.append(f"{path}:{node.lineno} {node.name}: {lines}")
    assert not too_long


def test_only_the_config_module_reads_the_environment() -> None:
    found = []
    for path in python_files(*PACKAGES):
        if path.as_posix() not in READS_ENVIRONMENT:
            found += places(path, attribute_uses(tree(path), "os", {"environ", "getenv", "putenv"}))
    assert not found


def test_packages_do_not_print() -> None:
    found = []
    for path in python_files(*PACKAGES):
        calls = (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call))
        called = ((node.lineno, node.func) for node in calls)
        lines = (n for n, name in called if isinstance(name, ast.Name) and name.id == "print")
        found += places(path, lines)
    assert not found


def test_packages_do_not_sleep() -> None:
    found = []
    for path in python_files(*PACKAGES):
        if path.as_posix() not in SLEEPS:
            found += places(path, attribute_uses(tree(path), "time", {"sleep"}))
    assert not found


def test_importing_a_package_loads_nothing_heavy() -> None:
    found = []
    for path in python_files(*PACKAGES):
        if path.name == "__init__.py":
            for line, name in imported(tree(path)):
                if name.split(".")[0] in HEAVY:
                    found.append(f"{path}:{line} imports {name}")
    assert not found


def test_a_compiled_core_is_loaded_by_its_owner_only() -> None:
    found = []
    for path in python_files(*PACKAGES):
        for line, name in imported(tree(path)):
            owner, _, rest = name.partition(".")
            if rest.split(".")[0] == "_native" and path.parts[0] != owner:
                found.append(f"{path}:{line} imports {name}")
    assert not found


def test_others_see_the_parameter_servers_through_their_face() -> None:
    found = []
    for path in python_files(*PACKAGES):
        for line, name in imported(tree(path)):
            owner, _, rest = name.partition(".")
            if owner == "ps_service" != path.parts[0] and rest.split(".")[0] not in PS_FACE:
                found.append(f"{path}:{line} imports {name}")
    assert not found


def test_git_holds_nothing_generated() -> None:
    assert [str(path) for path in repository_files() if GENERATED.search(path.name)] == []


def test_no_text_names_a_machine_or_a_registry() -> None:
    pattern = re.compile("|".join(MACHINE_WORDS))
    found = []
    for path in repository_files():
        for number, line in enumerate((text(path) or "").splitlines(), start=1):
            if pattern.search(line):
                found.append(f"{path}:{number}: {line.strip()[:100]}")
    assert not found


FIELD = re.compile(r"^\s*(?:repeated |optional )?(?:map<[^>]+>|[\w.]+) \w+ = \d+;")
DECLARATION = re.compile(r"^\s*(?:message|service|rpc|enum) \w+")
# A message of one verb needs no sentence of its own: the verb's comment and the fields' say it all.
VERB_MESSAGE = re.compile(r"^\s*message \w+(?:Request|Reply) ")


@pytest.mark.parametrize(
    "proto", [p for p in repository_files() if p.suffix == ".proto"], ids=lambda p: p.name
)
def test_every_proto_field_and_message_is_documented(proto: Path) -> None:
    lines = (ROOT / proto).read_text(encoding="utf-8").splitlines()
    bare = []
    for above, line in zip(["", *lines], lines, strict=False):
        declares = FIELD.match(line) or (DECLARATION.match(line) and not VERB_MESSAGE.match(line))
        if declares and "//" not in line and not above.strip().startswith("//"):
            bare.append(line.strip())
    assert not bare
    assert any(FIELD.match(line) for line in lines)
