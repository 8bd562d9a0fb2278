"""Build the Typer application from the commands of the other modules. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated

import typer

from updraft.cli import jobs, login, project, queue, recovery, runs, secrets, series, simulate, stack, tenants
from updraft.cli.console import EXIT_MEANINGS

EPILOG = "Exit codes: " + "; ".join(f"{int(code)} {meaning}" for code, meaning in EXIT_MEANINGS.items()) + "."

app = typer.Typer(
    name="updraft",
    help="From a manifest to a registered model: run jobs on a platform of Airflow, Kubernetes and MLflow.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_show_locals=False,  # local variables may contain a password
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(version("updraft"))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


stack.register(app)
project.register(app)
login.register(app)
jobs.register(app)
runs.register(app)
recovery.register(app)
series.register(app)
queue.register(app)
simulate.register(app)
tenants.register(app)
app.add_typer(secrets.app, name="secrets")
