"""Commands that say which platform the other commands use: login, logout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from updraft.cli.console import JsonOption, handled, print_json, say, warn
from updraft.exceptions import RefusedError


def register(app: typer.Typer) -> None:
    for command in (login, logout):
        app.command()(command)


@handled
def login(
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="Address of the platform's Airflow; without it, show it.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="User of Airflow; asked for if it is not given.")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Use the token in this file, which another program renews; no password."),
    ] = None,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read the password from standard input.")] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Send the password over http to another machine, readable on the way.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Use the platform at URL from now on. The log-in is tried, and then saved for this user of this machine."""
    from updraft.client import Client, Connection, load_config
    from updraft.client.config import save_login, saved_login_path

    if url is None:
        _show(load_config().airflow_url, as_json=as_json)
        return
    url = url.rstrip("/")
    if token_file is not None:
        connection = Connection(url, token_file=token_file.expanduser().absolute())
    else:
        _refuse_plain_http(url, insecure=insecure)
        connection = Connection(url, *_asked(user, stdin=stdin))
    with Client(connection) as client:
        health = client.health()
    save_login(connection, saved_login_path())
    for part in health.parts:
        if not part.ok and not as_json:
            warn(f"{part.name}: {part.detail}")
    used = load_config().airflow_url
    if used != url:
        warn(
            f"the environment names another platform, {used}, and it comes first: unset UPDRAFT_AIRFLOW_URL and "
            "UPDRAFT_HOME"
        )
    _show(used, as_json=as_json)


@handled
def logout(as_json: JsonOption = False) -> None:
    """Forget the log-in that `updraft login` has saved."""
    from updraft.client.config import saved_login_path

    path = saved_login_path()
    existed = path.exists()
    path.unlink(missing_ok=True)
    if as_json:
        print_json({"logged_out": existed})
    else:
        say(f"removed {path}" if existed else "no log-in was saved")


def _show(url: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"airflow_url": url})
    else:
        say(f"commands use the platform at {url}")


def _refuse_plain_http(url: str, *, insecure: bool) -> None:
    from urllib.parse import urlsplit

    from updraft.client.http import LOOPBACK

    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in LOOPBACK and not insecure:
        raise RefusedError(
            f"{url}: the password would be sent over http, readable on the way; give an https address, or --insecure "
            "in a network that you trust"
        )


def _asked(user: str | None, *, stdin: bool) -> tuple[str, str]:
    """Return the user and the password. Raises RefusedError if there is no terminal to ask on."""
    if stdin:
        if user is None:
            raise RefusedError("--stdin reads the password; give the user with --user")
        return user, sys.stdin.read().removesuffix("\n")
    if not sys.stdin.isatty():
        raise RefusedError("no terminal to ask on; give --user and --stdin, and send the password to standard input")
    return user or typer.prompt("user"), typer.prompt("password", hide_input=True)
