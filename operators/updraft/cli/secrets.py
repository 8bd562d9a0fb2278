"""`updraft secrets`: a tenant's named secrets. Values come from a prompt or standard input, never from arguments."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from updraft.cli.console import JsonOption, handled, print_json, say
from updraft.exceptions import RefusedError

app = typer.Typer(help="Named secrets that manifests refer to. Values are never shown.", no_args_is_help=True)

EXAMPLE = '{"KEY": "VALUE"}'
TenantOption = Annotated[str, typer.Option("--tenant", help="Tenant that the secret belongs to.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the secret: a-z, 0-9 and '-'.")]


@app.command("set")
@handled
def set_secret(
    name: NameArgument,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY]...", help="Keys, such as access_key secret_key; each is asked for."),
    ] = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="Read a JSON object from standard input; with one KEY its plain value.")
    ] = False,
    tenant: TenantOption = "default",
    as_json: JsonOption = False,
) -> None:
    """Create or replace a secret. Each KEY is asked for without showing what is typed."""
    from updraft.client import Client

    data = _from_stdin(keys or []) if stdin else _from_prompt(keys or [])
    with Client() as client:
        client.set_secret(name, data, tenant=tenant)
    if as_json:
        print_json({"name": name, "keys": sorted(data)})
    else:
        say(f"secret {name} holds {', '.join(sorted(data))}")


def _from_prompt(keys: list[str]) -> dict[str, str]:
    for key in keys:
        if "=" in key:  # the error must not repeat it: a value follows
            raise RefusedError("a value was given as an argument, where other users can read it; name the key only")
    if not sys.stdin.isatty():
        raise RefusedError("no terminal to ask on; add --stdin and send the secret to standard input")
    data: dict[str, str] = {}
    for key in keys or ["value"]:
        data[key] = typer.prompt(key, hide_input=True)
    return data


def _from_stdin(keys: list[str]) -> dict[str, str]:
    if any("=" in key for key in keys):
        raise RefusedError("a value was given as an argument, where other users can read it; name the key only")
    text = sys.stdin.read()
    if len(keys) == 1:
        return {keys[0]: text.rstrip("\n")}
    try:
        found = json.loads(text)
    except ValueError:  # the message of `ValueError` repeats the content
        raise RefusedError(f"standard input is no JSON; send an object such as {EXAMPLE}, or name one KEY") from None
    if not isinstance(found, dict) or not found or not all(isinstance(value, str) for value in found.values()):
        raise RefusedError(f"standard input must be a JSON object of texts, such as {EXAMPLE}")
    if keys and set(keys) != set(found):
        raise RefusedError(f"standard input must hold exactly the keys {', '.join(keys)}")
    return found


@app.command("list")
@handled
def list_secrets(tenant: TenantOption = "default", as_json: JsonOption = False) -> None:
    """List the names of the secrets."""
    from updraft.client import Client

    with Client() as client:
        names = client.secrets(tenant=tenant)
    if as_json:
        print_json({"secrets": names})
    else:
        say("\n".join(names) or "no secrets")


@app.command("rm")
@handled
def remove_secret(name: NameArgument, tenant: TenantOption = "default", as_json: JsonOption = False) -> None:
    """Delete a secret. Jobs that name it and have not started will fail."""
    from updraft.client import Client

    with Client() as client:
        client.delete_secret(name, tenant=tenant)
    if as_json:
        print_json({"name": name, "deleted": True})
    else:
        say(f"secret {name} deleted")
