"""The gateway that a command talks to, and as whom.

What is nearer to the command wins: an option, the environment, the current context, the cluster of
`embermesh up`. A context's token is sent to that context's gateway and to no other.
"""

from __future__ import annotations

import dataclasses
from contextvars import ContextVar

from embermesh import contexts, settings
from embermesh.client import Client
from embermesh.cluster import LocalCluster
from embermesh.contexts import UserConfig
from embermesh.settings import UserSettings
from services.kit.errors import InvalidInput


@dataclasses.dataclass(frozen=True)
class Options:
    """The options before the command; empty where one wasn't given."""

    url: str = ""
    token_file: str = ""
    context: str = ""

    def __post_init__(self) -> None:
        if self.url and self.context:
            raise InvalidInput("--url and --context name two gateways; give one of them")


@dataclasses.dataclass(frozen=True)
class Choice:
    """A gateway, where its token lies, and what said so."""

    url: str
    origin: str  # for people, e.g. `context prod`
    token: str = ""
    token_file: str = ""  # read when `token` is empty

    def bearer(self) -> str:
        """The token to send. Raises InvalidInput for a file that can't be used."""
        return self.token or (contexts.read_token(self.token_file) if self.token_file else "")


# Of one run of the command line: typer hands its own context to commands, not to what they call.
_given: ContextVar[Options] = ContextVar("options", default=Options())  # noqa: B039 (immutable)


def give(options: Options) -> None:
    """The options that this run of the command line began with."""
    _given.set(options)


def connect(options: Options | None = None, *, timeout: float | None = None) -> Client:
    """A client of the chosen gateway, with its token; `timeout` in seconds, default as set."""
    chosen, own = gateway(options), settings.load()
    return Client(chosen.url, timeout or own.timeout, token=chosen.bearer())


def gateway(options: Options | None = None) -> Choice:
    """The choice by options, environment, files and what runs here. Raises InvalidInput or NotFound
    where one of them is wrong.
    """
    own = settings.load()
    given = _given.get() if options is None else options
    state = LocalCluster(own.state_path).state() if own.state_path.exists() else None
    known = contexts.load(contexts.config_path())
    return choose(given, own, known, None if state is None else state.url)


def choose(options: Options, own: UserSettings, known: UserConfig, local: str | None) -> Choice:
    """The rule, from what there is; `local` is the URL of the local cluster."""
    if own.url and own.context:
        raise InvalidInput("EMBERMESH_URL and EMBERMESH_CONTEXT name two gateways; set one of them")
    mine = own.bearer()
    if options.url:
        found = Choice(options.url, "--url", token=mine)
    elif options.context:
        context = known.get(options.context)
        found = _of(options.context, context.url, context.token_file)
        if not context.token_file:
            found = dataclasses.replace(found, token=mine)
    elif own.url:
        found = Choice(own.url, "EMBERMESH_URL", token=mine)
    elif name := own.context or known.current:
        context = known.get(name)
        found = dataclasses.replace(_of(name, context.url, context.token_file), token=mine)
    elif local is not None:
        found = Choice(local, "the cluster of `embermesh up`", token=mine)
    else:
        found = Choice(settings.DEFAULT_URL, "the default", token=mine)
    if options.token_file:
        return dataclasses.replace(found, token="", token_file=options.token_file)
    return found


def _of(name: str, url: str, token_file: str) -> Choice:
    return Choice(url, f"context {name}", token_file=token_file)
