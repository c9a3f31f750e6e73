"""Contexts, completion and JSON of the command line, against a gateway with scripted jobs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import typer.main

from embermesh import cli, completion
from embermesh.access import Access
from embermesh.output import EXIT_CODES
from services.api.access import AccessRole
from tests.data import ROOT
from tests.fixtures.ports import find_free_port
from tests.integration.gateway_closed import CLOSED, admin_of
from tests.integration.gateway_harness import Harness, running_gateway
from tools import doc_cli

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def harness(redis_db: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[Harness]:
    with running_gateway(redis_url, tmp_path, CLOSED) as harness:
        with admin_of(harness) as admin:
            token = Access(admin).create_token("cli", AccessRole.OPERATOR).token
        harness.http.headers["Authorization"] = f"Bearer {token}"
        file = tmp_path / "token"
        file.write_text(token)
        file.chmod(0o600)
        yield harness


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    for name in ("EMBERMESH_URL", "EMBERMESH_TOKEN", "EMBERMESH_TOKEN_FILE", "EMBERMESH_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EMBERMESH_STATE_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def complete(shell: str, typed: str) -> list[str]:
    """What our program offers a shell after `typed`, by the protocol of its script."""
    words = typed.split(" ")
    asked = {
        "_EMBERMESH_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": typed,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    command = [sys.executable, "-c", "from embermesh.cli import main; main()"]
    done = subprocess.run(
        command, env={**os.environ, **asked}, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_a_context_leads_to_its_gateway_with_its_token(
    harness: Harness, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, url, token = harness.submit(), str(harness.http.base_url), str(tmp_path / "token")
    code, out, err = run("context", "add", "lab", "--url", url, "--token-file", token)
    assert (code, err) == (0, "")
    assert "(context lab)" in out  # the first one is used at once
    assert [j["id"] for j in json.loads(run("jobs", "--json")[1])] == [job]
    # Another gateway does not get that token.
    assert run("--url", url, "jobs")[0] == 1
    assert run("--url", url, "--token-file", token, "jobs")[0] == 0
    monkeypatch.setenv("EMBERMESH_URL", url)
    assert run("jobs")[0] == 1
    assert run("--context", "lab", "jobs")[0] == 0
    monkeypatch.delenv("EMBERMESH_URL")

    dead = f"http://127.0.0.1:{find_free_port()}"
    code, out, _ = run("context", "add", "dead", "--url", dead, "--use", "--json")
    assert (code, json.loads(out)["current"]) == (0, "dead")
    assert run("jobs")[0] == 3
    monkeypatch.setenv("EMBERMESH_CONTEXT", "lab")
    assert run("jobs")[0] == 0
    code, out, err = run("context", "remove", "dead")
    assert (code, "context lab" in out) == (0, True)
    monkeypatch.delenv("EMBERMESH_CONTEXT")
    listed = json.loads(run("context", "list", "--json")[1])
    assert listed == {"current": None, "contexts": {"lab": {"url": url, "token_file": token}}}
    assert "lab" in run("context", "use", "lab")[1]
    assert "*" in run("context", "list")[1]
    code, out, _ = run("context", "use", "--local")
    assert "(the default)" in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("context", "use", "nope"), 2, "no context 'nope'; known: none"),
        (("context", "use"), 2, "--local"),
        (("context", "remove", "nope"), 2, "nope"),
        (("context", "add", "x", "--url", "ftp://x"), 2, "ftp://x"),
        (("context", "add", "x", "--url", "http://u:p@x"), 2, "without a user or password"),
        (("context", "add", "x", "--url", "http://x", "--token-file", "/gone"), 2, "/gone"),
        (("--url", "http://x", "--context", "y", "jobs"), 2, "--url and --context"),
        (("--context", "nope", "jobs"), 2, "nope"),
        (("--url", "x", "jobs"), 2, "must start with http://"),
        (("completion", "tcsh"), 2, "tcsh"),
    ],
)
def test_wrong_words_are_exit_code_2(
    run: Run, arguments: tuple[str, ...], code: int, words: str
) -> None:
    found, out, err = run(*arguments)
    assert (found, out) == (code, "")
    assert words in err
    assert code in EXIT_CODES


def test_the_shells_complete_job_ids_and_commands(
    harness: Harness, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = {harness.submit(), harness.submit(), harness.submit(name="other")}
    url, token = str(harness.http.base_url), str(tmp_path / "token")
    run("context", "add", "lab", "--url", url, "--token-file", token)
    clicks = {job for job in jobs if job.startswith("clicks")}
    assert set(complete("bash", "embermesh get clicks-")) == clicks
    assert set(complete("fish", "embermesh scale ")) == jobs
    assert complete("bash", "embermesh context use ") == ["lab"]
    assert jobs <= {word.strip("\"'():") for word in complete("zsh", "embermesh get ")}


def test_the_bash_script_is_what_bash_takes(run: Run, tmp_path: Path) -> None:
    """The real shell, its completion function, and our program under the name it is called by."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "embermesh"
    program.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -c "from embermesh.cli import main; main()" "$@"\n'
    )
    program.chmod(0o755)
    script = run("completion", "bash")[1]
    ask = "COMP_WORDS=(embermesh check); COMP_CWORD=1; _embermesh_completion embermesh"
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{ask}\necho ${{COMPREPLY[@]}}"],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["checkpoint", "checkpoints"]
    for shell in ("zsh", "fish"):
        assert "_EMBERMESH_COMPLETE=complete_" + shell in run("completion", shell)[1]


def test_a_gateway_that_says_nothing_keeps_no_shell_waiting(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        monkeypatch.setenv("EMBERMESH_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        root: Any = typer.main.get_command(cli.app)
        context: typer.Context = root.make_context("embermesh", ["jobs"])
        begin = time.monotonic()
        assert completion.job_ids(context, "") == []
        assert time.monotonic() - begin < 5 * completion.DEADLINE_SECONDS


def test_every_command_that_answers_speaks_json(harness: Harness, run: Run, tmp_path: Path) -> None:
    url, token = str(harness.http.base_url), str(tmp_path / "token")
    run("context", "add", "lab", "--url", url, "--token-file", token)
    job = harness.submit()
    harness.wait(job, "running")
    lines = [json.loads(line) for line in run("logs", job, "--json")[1].splitlines()]
    assert {(line["role"], line["rank"]) for line in lines} == {
        *(("trainer", 0), ("trainer", 1), ("sparse-ps", 0), ("sparse-ps", 1), ("dense-ps", 0))
    }
    assert json.loads(run("down", "--json")[1])["stopped"] is False
    silent = {"completion"}  # its answer is a script
    for path, command in every_command():
        flags = {name for parameter in command.params for name in parameter.opts}
        assert "--json" in flags or path[-1] in silent, path


def every_command() -> list[tuple[tuple[str, ...], Any]]:
    return list(doc_cli.commands(typer.main.get_command(cli.app), ()))


def test_docs_name_every_command_and_exit_code() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    for path, _ in every_command():
        assert f"## `embermesh {' '.join(path)}`" in text
    for code, words in EXIT_CODES.items():
        assert f"| {code} | {words} |" in text
