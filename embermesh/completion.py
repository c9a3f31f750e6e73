"""What a shell offers after Tab: names that only the gateway or the configuration knows.

A shell that waits is worse than one that offers nothing: the gateway gets a second, and whatever
goes wrong is an empty offer.
"""

from __future__ import annotations

import enum

import typer

from embermesh import contexts, session
from services.kit.errors import EmbermeshError

PROGRAM = "embermesh"
VARIABLE = "_EMBERMESH_COMPLETE"
DEADLINE_SECONDS = 1.0
_JOBS = 200  # the newest ones


class Shell(str, enum.Enum):
    """Shells that `embermesh completion` has a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def script(shell: Shell) -> str:
    """What the shell must read, once per session, to complete our commands."""
    # typer's public way to this text adds options that write into the user's start-up files.
    from typer._completion_shared import get_completion_script

    return get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell.value)


def prepare() -> None:
    """Lets typer answer the scripts above; cheap."""
    from typer._completion_classes import completion_init

    completion_init()


def job_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of the newest jobs that begin with what is typed."""
    given = context.find_root().params
    try:
        options = session.Options(
            **{name: given.get(name) or "" for name in ("url", "token_file", "context")}
        )
        with session.connect(options, timeout=DEADLINE_SECONDS) as client:
            found = [job.id for job in client.jobs(_JOBS)]
    except EmbermeshError:
        return []
    return [job for job in found if job.startswith(incomplete)]


def context_names(incomplete: str) -> list[str]:
    """Names of contexts that begin with what is typed."""
    try:
        known = contexts.load(contexts.config_path())
    except EmbermeshError:
        return []
    return [name for name in sorted(known.contexts) if name.startswith(incomplete)]
