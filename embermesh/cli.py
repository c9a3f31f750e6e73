"""The `embermesh` command: a thin shell over `Client` and `LocalCluster`.

Standard output carries the answer (tables, or with --json nothing but JSON); progress and errors go
to standard error. Exit codes are those of `embermesh.output`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from embermesh import (
    cli_access,
    cli_context,
    cli_data,
    cli_steer,
    completion,
    follow,
    render,
    session,
    settings,
)
from embermesh import doctor as checks
from embermesh.cli_steer import JobId, Watch
from embermesh.cluster import LocalCluster
from embermesh.output import (
    EXIT_FAILED,
    EXIT_INPUT,
    EXIT_UNREACHABLE,
    AsJson,
    exit_with,
    out,
    print_json,
    say,
    show_started,
    watch_job,
)
from embermesh.session import connect
from services.kit import errors
from services.kit.discovery import Role

app = typer.Typer(
    name="embermesh",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(cli_access.tokens, name="token")
app.add_typer(cli_access.tenants, name="tenant")
app.add_typer(cli_context.app, name="context")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits with its code; an expected failure is one message, never a
    stack trace.
    """
    completion.prepare()
    try:
        app(None if arguments is None else list(arguments), prog_name=completion.PROGRAM)
    except (errors.InvalidInput, errors.NotFound) as error:
        _fail(error, EXIT_INPUT)
    except (errors.Unavailable, errors.DeadlineExceeded) as error:
        _fail(error, EXIT_UNREACHABLE, hint=str(error).startswith("no gateway"))
    except errors.Unauthenticated as error:
        say(
            "set EMBERMESH_TOKEN_FILE, or EMBERMESH_TOKEN, to a token of this gateway, or give its "
            "context a --token-file"
        )
        _fail(error, EXIT_FAILED)
    except errors.EmbermeshError as error:
        _fail(error, EXIT_FAILED)


@app.callback()
def options(
    url: Annotated[str, typer.Option(help="Of the gateway, for this command.")] = "",
    token_file: Annotated[
        str, typer.Option(help="File with your token, mode 600, for this command.")
    ] = "",
    context: Annotated[
        str, typer.Option(help="Another context.", autocompletion=completion.context_names)
    ] = "",
) -> None:
    """Trains click models on sharded parameter servers."""
    session.give(session.Options(url=url, token_file=token_file, context=context))


@app.command()
def up(
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the gateway (default 8080).")
    ] = None,
    redis_url: Annotated[
        str | None, typer.Option(help="Use this Redis instead of starting one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a local cluster: Redis, checkpoint service, gateway. Mends one that lost a process."""
    cluster = LocalCluster(settings.load().state_path, say)
    state = cluster.up(port=port, redis_url=redis_url)
    if as_json:
        print_json(state)
    else:
        out().print(f"gateway ready at {state.url} (its API: {state.url}/docs)", soft_wrap=True)
        out().print(f"logs in {cluster.folder / 'logs'}", soft_wrap=True)
    chosen = session.gateway()
    if chosen.url != state.url:
        say(f"commands go to {chosen.url} all the same: {chosen.origin} is nearer")


@app.command()
def down(as_json: AsJson = False) -> None:
    """Cancel the jobs of the local cluster and stop it; paused ones stay for the next `up`."""
    cluster = LocalCluster(settings.load().state_path, say)
    stopped = cluster.down()
    if as_json:
        print_json({"stopped": stopped, "folder": str(cluster.folder)})
        return
    out().print(
        "stopped" if stopped else f"no cluster is running in {cluster.folder}", soft_wrap=True
    )


@app.command()
def submit(
    spec: Annotated[
        str, typer.Argument(metavar="FILE", help="JobSpec in YAML or JSON; - reads standard input.")
    ],
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key and spec start one job, however often.")
    ] = None,
    watched: Watch = False,
    as_json: AsJson = False,
) -> None:
    """Start a job."""
    with connect() as client:
        job = client.submit(_spec(spec), idempotency_key=idempotency_key)
        show_started(client, job, watched, as_json)


@app.command()
def plan(
    spec: Annotated[
        str, typer.Argument(metavar="FILE", help="JobSpec in YAML or JSON; - reads standard input.")
    ],
    rows: Annotated[
        int | None, typer.Option(min=1, help="Rows of a table that the spec doesn't bound.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a job would take and whether it has room; start nothing."""
    with connect() as client:
        size = client.size(_spec(spec), assumed_rows=rows)
    if as_json:
        print_json(size)
    else:
        render.job_size(out(), size)
    if not size.admitted:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def jobs(
    every: Annotated[bool, typer.Option("--all", help="Not only the newest 100.")] = False,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    with connect() as client:
        found = list(client.all_jobs()) if every else client.jobs()
    if as_json:
        print_json(found)
    else:
        out().print(render.jobs_table(found) if found else "no jobs yet")


@app.command()
def get(job: JobId, watched: Watch = False, as_json: AsJson = False) -> None:
    """Show a job: state, progress, result, processes."""
    with connect() as client:
        view = client.get(job)
        if watched:
            view = watch_job(client, view)
    if as_json:
        print_json(view)
    else:
        render.job_details(out(), view)
    if watched:
        exit_with(view)


@app.command()
def events(job: JobId, as_json: AsJson = False) -> None:
    """Show what happened to a job."""
    with connect() as client:
        found = client.events(job)
    if as_json:
        print_json(found)
    else:
        out().print(render.events_table(found))


@app.command()
def logs(
    job: JobId,
    role: Annotated[Role | None, typer.Option(help="Kind of process; default: all kinds.")] = None,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Number of the process; default: all.")
    ] = None,
    tail: Annotated[int, typer.Option(min=1, max=10_000, help="Last lines of each process.")] = 200,
    generation: Annotated[
        int | None,
        typer.Option(
            min=1, help="An earlier generation, e.g. one that failed; default: the newest."
        ),
    ] = None,
    following: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job is over.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line: role, rank, line.")
    ] = False,
) -> None:
    """Print the log lines of a job's processes. Of one that failed and whose container is gone,
    the last 50 that it wrote.
    """
    if following and generation is not None:
        raise errors.InvalidInput(
            "--generation: only the newest generation goes on; leave out --follow"
        )
    with connect() as client:
        named = None if role is None else str(role)
        chunks = (
            follow.follow(client, job, named, rank, tail)
            if following
            else follow.read(client, job, named, rank, tail, generation)
        )
        for chunk in chunks:
            sys.stdout.write(chunk.as_json() if as_json else chunk.as_text(named=not following))
            sys.stdout.flush()


app.command()(cli_steer.cancel)
app.command()(cli_steer.pause)
app.command()(cli_steer.resume)


@app.command()
def checkpoint(job: JobId, as_json: AsJson = False) -> None:
    """Take a checkpoint of a running job now."""
    with connect() as client:
        taken = client.checkpoint(job)
    if as_json:
        print_json(taken)
    else:
        out().print(render.checkpoints_table([taken]))


@app.command()
def checkpoints(job: JobId, as_json: AsJson = False) -> None:
    """List a job's complete checkpoints."""
    with connect() as client:
        found = client.checkpoints(job)
    if as_json:
        print_json(found)
    else:
        out().print(render.checkpoints_table(found) if found else "no checkpoints yet")


app.command()(cli_steer.restore)
app.command()(cli_steer.scale)
app.command()(cli_data.produce)
app.command("export-rows")(cli_data.export_rows)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Check this machine: what is there, what is missing, how to get it."""
    found = checks.examine(session.gateway().url, settings.load().state_path)
    if as_json:
        print_json([dataclasses.asdict(c) for c in found])
    else:
        out().print(render.checks_table(found))
    if any(c.needed and not c.ok for c in found):
        raise typer.Exit(EXIT_FAILED)


@app.command("completion")
def print_completion(
    shell: Annotated[completion.Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the script that lets a shell complete commands, options and job ids."""
    sys.stdout.write(completion.script(shell) + "\n")


def _spec(file: str) -> str | Path:
    return sys.stdin.read() if file == "-" else Path(file)


def _fail(error: errors.EmbermeshError, code: int, *, hint: bool = False) -> None:
    say(f"error: {error}")
    if hint:
        say("start a local cluster with `embermesh up`, or choose a gateway: `embermesh context`")
    sys.exit(code)


if __name__ == "__main__":
    main()
