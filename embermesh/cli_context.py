"""`embermesh context …`: gateways by name, so that nobody types URLs."""

from __future__ import annotations

from typing import Annotated

import pydantic
import typer

from embermesh import contexts, render, session
from embermesh.completion import context_names
from embermesh.contexts import Context, UserConfig
from embermesh.output import AsJson, out, print_json, say
from services.kit.errors import InvalidInput

app = typer.Typer(help="Gateways by name, in your configuration file.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of a context.", autocompletion=context_names)
]


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What you will call it.")],
    url: Annotated[str, typer.Option(help="Of the gateway, e.g. https://embermesh.example.org.")],
    token_file: Annotated[
        str, typer.Option(help="File with your token, mode 600; leave it out for an open gateway.")
    ] = "",
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add a gateway. The first one is used at once."""
    known = _load()
    if token_file:
        contexts.read_token(token_file)  # said now, not at the first command
    try:
        context = Context(url=url, token_file=token_file)
    except pydantic.ValidationError as error:
        raise InvalidInput(
            f"--url {url!r} must be http://… or https://… without a user or password"
        ) from error
    changed = known.with_added(name, context, use=use or not known.contexts)
    _save(changed)
    _tell(changed, as_json)


@app.command("use")
def use(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", autocompletion=context_names)
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="None of them: the cluster of `embermesh up`.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Choose the gateway of the next commands."""
    if local == (name is not None):
        raise InvalidInput("give the NAME of a context, or --local")
    changed = _load().using(name)
    _save(changed)
    _tell(changed, as_json)


@app.command("list")
def list_contexts(as_json: AsJson = False) -> None:
    """List the contexts; * marks the one in use."""
    known = _load()
    if as_json:
        print_json(known)
    elif known.contexts:
        out().print(render.contexts_table(known))
    else:
        out().print("no contexts yet")


@app.command("remove")
def remove(name: Name, as_json: AsJson = False) -> None:
    """Forget a gateway; the token's file stays."""
    changed = _load().without(name)
    _save(changed)
    _tell(changed, as_json)


def _load() -> UserConfig:
    return contexts.load(contexts.config_path())


def _save(changed: UserConfig) -> None:
    contexts.save(contexts.config_path(), changed)


def _tell(changed: UserConfig, as_json: bool) -> None:
    if as_json:
        print_json(changed)
        return
    chosen = session.gateway()
    out().print(f"commands go to {chosen.url} ({chosen.origin})", soft_wrap=True, markup=False)
    if changed.current is not None and chosen.origin != f"context {changed.current}":
        say(f"{chosen.origin} is nearer than context {changed.current}")
