"""What README, examples and docs promise: specs that parse, commands and files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from embermesh.cli import app
from embermesh.output import EXIT_FAILED, EXIT_INPUT, EXIT_UNREACHABLE
from services.api.spec import parse
from tests.data import ROOT

README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "docs" / "deploy.md"]


def commands() -> set[str]:
    single = {
        info.name or info.callback.__name__
        for info in app.registered_commands
        if info.callback is not None
    }
    return single | {str(group.name) for group in app.registered_groups}


def test_the_readmes_jobspec_is_accepted() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    spec = parse(text)
    assert (spec.name, spec.training.mode) == ("criteo-deepfm", "hybrid")
    assert len(text.splitlines()) <= 10


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.name)
def test_examples_are_accepted(file: Path) -> None:
    assert parse(file.read_text()).checkpoint is not None


def test_the_criteo_example_is_the_readmes_job() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    ours, shown = parse((ROOT / "examples" / "criteo.yaml").read_text()), parse(text)
    same = {"data": shown.data, "name": shown.name}  # the data lies elsewhere
    assert ours.model_copy(update=same) == shown


def test_the_tour_of_the_command_line_is_complete() -> None:
    shown = set(re.findall(r"^embermesh ([\w-]+)", README, re.MULTILINE))
    shown |= set(re.findall(r"(?:;   |, )(\w+) JOB", README))
    shown |= set(re.findall(r";   (tenant) quota", README))
    assert shown == commands()
    assert typer.main.get_command(app).name == "embermesh"


def test_exit_codes_are_those_of_the_program() -> None:
    for code, words in (
        (EXIT_FAILED, "the job failed or the request was refused"),
        (EXIT_INPUT, "wrong usage or"),
        (EXIT_UNREACHABLE, "not reachable"),
    ):
        assert f"{code} {words}" in README


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", document.read_text())
    assert targets
    for target in targets:
        assert (document.parent / target).exists(), target


def test_the_reading_tour_names_files_that_exist() -> None:
    section = README.split("## The source")[1].split("## What")[0]
    for row in re.findall(r"^\| (`.+?) \|", section, re.MULTILINE):
        folder = ROOT
        for name in re.findall(r"`([^`]+)`", row):
            # A short name is in the folder of the row's first, or one above.
            found = [*ROOT.glob(name), *folder.glob(name), *folder.parent.glob(name)]
            assert found, f"{row}: {name}"
            if "/" in name and folder == ROOT:
                folder = found[0] if found[0].is_dir() else found[0].parent
