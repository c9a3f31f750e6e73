"""Commands that change a job that is there: cancel, pause, resume, restore, scale."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from embermesh import completion
from embermesh.output import AsJson, show_job, show_paused, show_started
from embermesh.session import connect

JobId = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Job id, e.g. criteo-deepfm-x7k2qa.",
        autocompletion=completion.job_ids,
    ),
]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show progress until the job is over.")]


def cancel(job: JobId, as_json: AsJson = False) -> None:
    """Stop a job."""
    with connect() as client:
        show_job(client.cancel(job), as_json)


def pause(
    job: JobId,
    waited: Annotated[
        bool, typer.Option("--wait", "-w", help="Show progress until it is paused.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take a checkpoint of a job, end its processes, and keep it until it is resumed."""
    with connect() as client:
        view = client.pause(job)
        if waited:
            show_paused(client, view, as_json)
        else:
            show_job(view, as_json)


def resume(job: JobId, watched: Watch = False, as_json: AsJson = False) -> None:
    """Start a paused job again where it was paused."""
    with connect() as client:
        show_started(client, client.resume(job), watched, as_json)


def restore(
    job: JobId,
    checkpoint: Annotated[
        str | None, typer.Option(help="Id or manifest URI; default: the newest.")
    ] = None,
    placement: Annotated[
        Literal["remote", "embedded"] | None,
        typer.Option(help="Where the parameter servers are from now on."),
    ] = None,
    sparse_ps: Annotated[
        int | None, typer.Option(min=1, help="Another number of sparse-PS shards.")
    ] = None,
    dense_ps: Annotated[
        int | None, typer.Option(min=1, help="Another number of dense-PS blocks.")
    ] = None,
    trainers: Annotated[int | None, typer.Option(min=1, help="Another number of trainers.")] = None,
    watched: Watch = False,
    as_json: AsJson = False,
) -> None:
    """Start a job again from a checkpoint, with the same or other numbers of processes."""
    with connect() as client:
        view = client.restore(
            job,
            checkpoint=checkpoint,
            placement=placement,
            sparse_ps=sparse_ps,
            dense_ps=dense_ps,
            trainers=trainers,
        )
        show_started(client, view, watched, as_json)


def scale(
    job: JobId,
    trainers: Annotated[int | None, typer.Option(min=1, help="How many trainers go on.")] = None,
    sparse_ps: Annotated[
        int | None, typer.Option(min=1, help="How many sparse-PS shards; not with embedded ones.")
    ] = None,
    dense_ps: Annotated[int | None, typer.Option(min=1, help="How many dense-PS blocks.")] = None,
    version: Annotated[
        int | None, typer.Option(min=0, help="Only if the job is still at this version.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change how many processes a job has: by a checkpoint and a restart from it, or at once if it
    is paused.
    """
    with connect() as client:
        view = client.scale(
            job, trainers=trainers, sparse_ps=sparse_ps, dense_ps=dense_ps, version=version
        )
        show_job(view, as_json)
