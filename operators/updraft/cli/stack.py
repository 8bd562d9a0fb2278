"""Commands for the platform on this machine: init, up, down, status, doctor, clean, images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from updraft.cli.console import Exit, JsonOption, err, handled, print_json, say, size

if TYPE_CHECKING:
    from updraft.stack.layout import Home

images = typer.Typer(help="Environments of the learners' images on this machine.", no_args_is_help=True)

AirflowPort = Annotated[int | None, typer.Option("--port-airflow", min=1, max=65535, help="Loopback port of Airflow.")]
MlflowPort = Annotated[int | None, typer.Option("--port-mlflow", min=1, max=65535, help="Loopback port of MLflow.")]
S3Port = Annotated[int | None, typer.Option("--port-s3", min=1, max=65535, help="Loopback port of the S3 server.")]
NodePort = Annotated[int | None, typer.Option("--port-node", min=1, max=65535, help="Loopback port of the local node.")]
Gpus = Annotated[int | None, typer.Option("--gpus", min=0, help="Devices that the local node declares.")]
Cpus = Annotated[float | None, typer.Option("--cpus", min=0.01, help="CPUs that the local node offers.")]
Memory = Annotated[int | None, typer.Option("--memory-mib", min=1, help="Memory that the local node offers, MiB.")]


def register(app: typer.Typer) -> None:
    for command in (init, up, down, status, doctor, clean):
        app.command()(command)
    app.add_typer(images, name="images")


def _home() -> Home:
    from updraft.stack.layout import find_home

    return find_home()


def _given(**values: float | None) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _ports(**values: int | None) -> dict[str, int]:
    return {name: value for name, value in values.items() if value is not None}


@handled
def init(
    port_airflow: AirflowPort = None,
    port_mlflow: MlflowPort = None,
    port_s3: S3Port = None,
    port_node: NodePort = None,
    gpus: Gpus = None,
    cpus: Cpus = None,
    memory_mib: Memory = None,
    as_json: JsonOption = False,
) -> None:
    """Make the platform's home with generated secrets and free ports; starts nothing."""
    from updraft.stack import control

    home = _home()
    config = control.initialise(
        home,
        ports=_ports(airflow=port_airflow, mlflow=port_mlflow, s3=port_s3, node=port_node),
        node=_given(gpus=gpus, cpus=cpus, memory_mib=memory_mib),
    )
    if as_json:
        print_json({"home": str(home.root), **config.model_dump()})
    else:
        say(f"{home.root} is set up; start it with: updraft up")


@handled
def up(
    port_airflow: AirflowPort = None,
    port_mlflow: MlflowPort = None,
    port_s3: S3Port = None,
    port_node: NodePort = None,
    gpus: Gpus = None,
    cpus: Cpus = None,
    memory_mib: Memory = None,
    as_json: JsonOption = False,
) -> None:
    """Start every part, or attach to a platform that is up; returns when all are ready."""
    from dataclasses import asdict

    from updraft.stack import control, display

    home = _home()
    addresses = control.up(
        home,
        ports=_ports(airflow=port_airflow, mlflow=port_mlflow, s3=port_s3, node=port_node),
        node=_given(gpus=gpus, cpus=cpus, memory_mib=memory_mib),
        say=(lambda text: err().print(text, markup=False)) if as_json else say,
    )
    if as_json:
        print_json({"home": str(home.root), **asdict(addresses)})
    else:
        display.show_addresses(home)


@handled
def down(as_json: JsonOption = False) -> None:
    """End every process of the platform, jobs that run included. Data, models and checkpoints stay."""
    from updraft.stack import control

    forced = control.down(_home(), say=(lambda _text: None) if as_json else say)
    if as_json:
        print_json({"running": False, "ended_by_force": forced})
    else:
        say("Nothing of this platform is running.")


@handled
def status(as_json: JsonOption = False) -> None:
    """Show the parts: state, process, port, memory. Leaves with 4 when one is not ready."""
    from updraft.stack import display
    from updraft.stack.status import stack_status

    found = stack_status(_home())
    if as_json:
        print_json(found.as_dict())
    else:
        display.show_status(found)
    if not found.ready:
        raise typer.Exit(Exit.UNAVAILABLE)


@handled
def doctor(as_json: JsonOption = False) -> None:
    """Look for what is wrong with this machine or the platform's home; changes nothing."""
    from updraft.stack import display
    from updraft.stack.doctor import doctor as examine

    checks = examine(_home())
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
        float, typer.Option("--older-than", min=0, help="Job folders that nobody has touched for so many days.")
    ] = 7,
    as_json: JsonOption = False,
) -> None:
    """Remove caches and old job folders of the local node. Says what and asks first; the store is not touched."""
    from updraft.cli import cleaning

    found = cleaning.find(_home(), older_than_days=older_than_days)
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
    from updraft.stack import environments

    home = _home()
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
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Images of the catalogue; default: all.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Build the environments of learner images from the lock file; those that are built are left alone."""
    from updraft.stack import environments

    home = _home()
    built = []
    for name in names or environments.image_names(home):
        if not as_json:
            say(f"building {name}")
        environments.build_image(home, name, lambda _line: None)
        built.append(name)
    if as_json:
        print_json({"built": built})
