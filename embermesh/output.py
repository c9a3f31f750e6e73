"""How commands answer: to standard output what was asked for, to standard error everything else."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Console

from embermesh import render
from embermesh.client import Client
from embermesh.watch import watch
from services.api.views import JobState, JobView

EXIT_FAILED, EXIT_INPUT, EXIT_UNREACHABLE, EXIT_INTERRUPTED = 1, 2, 3, 130
EXIT_CODES = {
    0: "fine; with --watch: the job succeeded; with --wait: it is paused",
    EXIT_FAILED: "the job failed or was cancelled, or is not paused, or the request was refused",
    EXIT_INPUT: "wrong usage or input: an option, a file, a JobSpec, a name that doesn't exist",
    EXIT_UNREACHABLE: "not reachable, or no answer in time",
    EXIT_INTERRUPTED: "interrupted by Ctrl-C; the job goes on",
}

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON only.")]


def out() -> Console:
    """Standard output. A pipe has no width: tables then keep each entry on one line."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 240)


def say(line: str) -> None:
    """One line for people, on standard error."""
    Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


def print_json(answer: BaseModel | dict[str, Any] | Sequence[Any]) -> None:
    """The answer as JSON on standard output."""
    sys.stdout.write(json.dumps(answer, indent=2, default=_plain) + "\n")


def show_job(job: JobView, as_json: bool) -> None:
    """The job in one line, or as JSON."""
    if as_json:
        print_json(job)
        return
    line = f"{job.id} {render.state_text(job.state)}{render.result_text(job)}"
    out().print(line, soft_wrap=True)


def show_started(client: Client, job: JobView, watched: bool, as_json: bool) -> None:
    """A job that was just started: at once, or when it is over."""
    if watched:
        say(f"job {job.id}")
        job = watch_job(client, job)
    show_job(job, as_json)
    if watched:
        exit_with(job)


def show_paused(client: Client, job: JobView, as_json: bool) -> None:
    """A job whose pause was just asked for, when that has come about; code 1 when it has not."""
    job = watch_job(client, job, paused=True)
    if job.state != JobState.PAUSED:
        why = [e for e in client.events(job.id) if e.kind in ("pause", "pause-failed")][-1:]
        told = "".join(f": {e.message}" for e in why if e.kind == "pause-failed")
        say(f"the job is not paused, it is {job.state}{told}")
    show_job(job, as_json)
    if job.state != JobState.PAUSED:
        raise typer.Exit(EXIT_FAILED)


def watch_job(client: Client, job: JobView, *, paused: bool = False) -> JobView:
    """Shows the job's progress until it is over (or `paused`); Ctrl-C ends the watching only."""
    try:
        return watch(client, job.id, Console(stderr=True), paused=paused)
    except KeyboardInterrupt:
        say(f"the job goes on; `embermesh get --watch {job.id}` looks again")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def exit_with(job: JobView) -> None:
    """Ends the command with code 1 unless the job succeeded."""
    if job.state == JobState.FAILED:
        say(job.error or "the job failed")
    if job.state != JobState.SUCCEEDED:
        raise typer.Exit(EXIT_FAILED)


def _plain(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")
