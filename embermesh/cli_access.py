"""`embermesh token …` and `embermesh tenant …`: who may use the gateway, and how much."""

from __future__ import annotations

from typing import Annotated

import pydantic
import typer

from embermesh import render
from embermesh.access import Access
from embermesh.output import AsJson, out, print_json, say
from embermesh.session import connect
from gateway.access_config import AccessConfig
from gateway.identity import digest, new_token
from services.api.access import AccessRole, Quota
from services.kit.errors import InvalidInput

tokens = typer.Typer(help="Tokens that open the gateway.", no_args_is_help=True)
tenants = typer.Typer(help="Tenants: what they use, and their quotas.", no_args_is_help=True)


@tokens.command("generate")
def generate(as_json: AsJson = False) -> None:
    """Make the first admin's token, without a gateway: it gets the digest, you keep the token."""
    _, token = new_token()
    setting = f"{AccessConfig.PREFIX}ADMIN_DIGEST"
    if as_json:
        print_json({"token": token, "setting": setting, "digest": digest(token)})
        return
    out().print(token, soft_wrap=True)
    say(f"keep it: it is shown once. Start the gateway with\n{setting}={digest(token)}")


@tokens.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who or what will have it.")],
    role: Annotated[AccessRole, typer.Option(help="What it may do.")] = AccessRole.VIEWER,
    tenant: Annotated[
        str | None, typer.Option(help="Default: your own; * needs an admin of all tenants.")
    ] = None,
    days: Annotated[float | None, typer.Option(help="Until it expires; default: never.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token. It is printed once."""
    with connect() as client:
        try:
            made = Access(client).create_token(name, role, tenant=tenant, days=days)
        except pydantic.ValidationError as error:
            raise InvalidInput(str(error)) from error
    if as_json:
        print_json(made)
        return
    out().print(made.token, soft_wrap=True)
    say(f"token {made.id}: {made.role} of tenant {made.tenant}; it is shown this once")


@tokens.command("list")
def list_tokens(as_json: AsJson = False) -> None:
    """List tokens, without their secrets."""
    with connect() as client:
        found = Access(client).tokens()
    if as_json:
        print_json(found)
    else:
        out().print(render.tokens_table(found) if found else "no tokens yet")


@tokens.command("revoke")
def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="Id of the token.")],
    as_json: AsJson = False,
) -> None:
    """End a token at once."""
    with connect() as client:
        Access(client).revoke_token(token)
    if as_json:
        print_json({"revoked": token})
    else:
        out().print(f"{token} is revoked")


@tenants.command("list")
def list_tenants(as_json: AsJson = False) -> None:
    """List tenants: what their active jobs take, and how much they may."""
    with connect() as client:
        found = Access(client).tenants()
    if as_json:
        print_json(found)
    else:
        out().print(render.tenants_table(found) if found else "no tenants yet")


@tenants.command("quota")
def quota(
    tenant: Annotated[str, typer.Argument(metavar="TENANT")],
    jobs: Annotated[int | None, typer.Option(min=0, help="Active jobs.")] = None,
    trainers: Annotated[int | None, typer.Option(min=0, help="Trainers of them all.")] = None,
    memory_gib: Annotated[
        float | None, typer.Option(min=0, help="GiB of embedding rows, as `plan` sizes them.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replace a tenant's quota; what isn't given has no bound."""
    memory = None if memory_gib is None else int(memory_gib * (1 << 30))
    with connect() as client:
        view = Access(client).set_quota(
            tenant, Quota(jobs=jobs, trainers=trainers, memory_bytes=memory)
        )
    if as_json:
        print_json(view)
    else:
        out().print(render.tenants_table([view]))
