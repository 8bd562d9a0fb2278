"""Commands for the platform on this machine: up, down, status, doctor, clean, images."""

from __future__ import annotations

import functools
import inspect
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from updraft.cli.console import Exit, JsonOption, handled, note, print_json, say, size, warn
from updraft.exceptions import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from updraft.stack.layout import Home

images = typer.Typer(help="Environments of the learners' images on this machine.", no_args_is_help=True)

# Options of `up`, for a new home.
PORTS = {"airflow": "Airflow", "mlflow": "MLflow", "s3": "the S3 server", "node": "the local node"}
OPTIONS: dict[str, Any] = {
    **{
        f"port_{part}": Annotated[
            int | None, typer.Option(f"--port-{part}", min=1, max=65535, help=f"Loopback port of {title}.")
        ]
        for part, title in PORTS.items()
    },
    "kubeconfig": Annotated[
        str | None,
        typer.Option(
            "--kubeconfig",
            metavar="FILE",
            help="A cluster of yours in place of the local node; 'local': that one again.",
        ),
    ],
    "context": Annotated[str | None, typer.Option("--context", metavar="NAME", help="The context of that file.")],
    "address": Annotated[
        str | None,
        typer.Option("--address", metavar="IP", help="This machine's address as the cluster's pods reach it."),
    ],
    "gpus": Annotated[int | None, typer.Option("--gpus", min=0, help="Devices that the local node declares.")],
    "cpus": Annotated[float | None, typer.Option("--cpus", min=0.01, help="CPUs that the local node offers.")],
    "memory_mib": Annotated[
        int | None, typer.Option("--memory-mib", min=1, help="Memory that the local node offers, MiB.")
    ],
}


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with OPTIONS; the given ones are passed to it as `ports`, `node` and `cluster`."""

    @functools.wraps(command)
    def run(as_json: bool, **values: Any) -> None:
        given = {name: value for name, value in values.items() if value is not None}
        ports = {name.removeprefix("port_"): given.pop(name) for name in [*given] if name.startswith("port_")}
        cluster = {name: given.pop(name) for name in ("kubeconfig", "context", "address") if name in given}
        command(ports, given, cluster, as_json)

    last = inspect.signature(command, eval_str=True).parameters["as_json"]
    options = [inspect.Parameter(name, last.kind, default=None, annotation=kind) for name, kind in OPTIONS.items()]
    run.__signature__ = inspect.Signature([*options, last])  # type: ignore[attr-defined]
    return run


def register(app: typer.Typer) -> None:
    for command in (up, down, status, doctor, clean):
        app.command()(command)
    app.add_typer(images, name="images")


def _home() -> Home:
    """Return the home of the platform on this machine. Raises RefusedError if only the client is installed."""
    if find_spec("airflow") is None:
        raise RefusedError(
            "only the client is installed here. The platform starts from a checkout of its repository, with `make up`; "
            "`updraft login URL` uses one that runs elsewhere"
        )
    from updraft.stack.layout import find_home

    return find_home()


@handled
@with_options
def up(ports: dict[str, int], node: dict[str, float], cluster: dict[str, str], as_json: JsonOption = False) -> None:
    """Start every part, or attach to a platform that is up; returns when all are ready."""
    from dataclasses import asdict

    home = _home()
    from updraft.stack import control, display

    tell = note if as_json else say
    addresses = control.up(home, ports=ports, node=node, cluster=cluster, say=tell)
    if as_json:
        print_json({"home": str(home.root), **asdict(addresses)})
    else:
        display.show_addresses(home)
        _warn_of_other_platform(addresses.airflow)


def _warn_of_other_platform(airflow_url: str) -> None:
    """Warn if commands such as `submit` go to another platform than the one that was just started."""
    from updraft.client import load_config

    used = load_config().airflow_url
    if used != airflow_url:
        warn(f"commands use the platform at {used}, because of `updraft login` or the environment; see `updraft login`")


@handled
def down(as_json: JsonOption = False) -> None:
    """End every process of the platform, jobs that run included. Data, models and checkpoints stay."""
    home = _home()
    from updraft.stack import control

    forced = control.down(home, say=(lambda _text: None) if as_json else say)
    if as_json:
        print_json({"running": False, "ended_by_force": forced})
    else:
        say("Nothing of this platform is running.")


@handled
def status(as_json: JsonOption = False) -> None:
    """Show the parts: state, process, port, memory. Leaves with 4 when one is not ready."""
    home = _home()
    from updraft.stack import display
    from updraft.stack.status import stack_status

    found = stack_status(home)
    if as_json:
        print_json(found.as_dict())
    else:
        display.show_status(found)
    if not found.ready:
        raise typer.Exit(Exit.UNAVAILABLE)


@handled
def doctor(
    kubeconfig: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Look at the cluster of this file too.", show_default=False)
    ] = None,
    context: Annotated[
        str | None, typer.Option(metavar="NAME", help="The context of that file.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Look for what is wrong with this machine or the platform's home; changes nothing."""
    home = _home()
    from updraft.stack import display
    from updraft.stack.doctor import doctor as examine

    checks = examine(home, kubeconfig, context)
    if as_json:
        print_json({"checks": [check.as_dict() for check in checks]})
    else:
        display.show_checks(checks)
    if not all(check.ok for check in checks):
        raise typer.Exit(Exit.FAILED)


@handled
def clean(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    older_than_days: Annotated[
        float, typer.Option("--older-than", min=0, help="Job folders that have not changed for so many days.")
    ] = 7,
    as_json: JsonOption = False,
) -> None:
    """Remove caches and old job folders of the local node. Says what and asks first; the store is not touched."""
    home = _home()
    from updraft.cli import cleaning

    found = cleaning.find(home, older_than_days=older_than_days)
    total_bytes = sum(item.size_bytes for item in found)
    if not as_json:
        for item in found:
            say(f"{size(item.size_bytes):>10}  {item.what}: {item.path}")
        say(f"{len(found)} to remove, {size(total_bytes)}" if found else "nothing to remove")
    remove = bool(found) and not dry_run and (yes or (not as_json and typer.confirm("Remove them?")))
    if remove:
        cleaning.remove(found)
    if as_json:
        items = [{"what": item.what, "path": str(item.path), "size_bytes": item.size_bytes} for item in found]
        print_json({"found": items, "size_bytes": total_bytes, "removed": remove})
    elif remove:
        say(f"{size(total_bytes)} freed")


@images.command("list")
@handled
def list_images(as_json: JsonOption = False) -> None:
    """List the images that this machine knows, and whether their environments are built."""
    home = _home()
    from updraft.stack import environments

    found = {name: environments.is_built(home, name) for name in environments.image_names(home)}
    if as_json:
        print_json({"images": [{"name": name, "built": built} for name, built in found.items()]})
        return
    for name, built in found.items():
        say(f"{'built    ' if built else 'not built'}  {name}")


@images.command("build")
@handled
def build_images(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Images; default: those not built on demand."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Build the environments of learner images from the lock file; those that are built are left alone."""
    home = _home()
    from updraft.stack import environments

    built = []
    for name in names or environments.image_names(home, on_demand=False):
        if not as_json:
            say(f"building {name}")
        environments.build_image(home, name, lambda _line: None)
        built.append(name)
    if as_json:
        print_json({"built": built})
