"""Commands for tenants: what each may use of the cluster, and what it uses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from updraft.cli.console import JsonOption, handled, print_json, print_table, say, warn

tenants = typer.Typer(
    name="tenants", help="What each tenant may use of the cluster, and what it uses.", no_args_is_help=True
)


PREFIX, SYSTEM = "updraft-", "updraft-system"
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The file of tenants.", exists=True, dir_okay=False)]
PrefixOption = Annotated[str, typer.Option(help="As UPDRAFT_NAMESPACE_PREFIX.")]
SystemOption = Annotated[str, typer.Option(help="Namespace of the platform's account.")]


def register(app: typer.Typer) -> None:
    app.add_typer(tenants)


@tenants.command("list")
@handled
def list_tenants(as_json: JsonOption = False) -> None:
    """List your tenants: quota, use, what is borrowed, and whose turn is next (the smallest claim)."""
    from updraft.client import Client

    with Client() as client:
        found = client.tenants()
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each.name,
            f"{each.weight:g}",
            _devices(each.quota) or "no limits",
            _devices(each.used) or "-",
            _devices(each.borrowed) or "-",
            f"{each.running}",
            f"{each.waiting}",
            "unknown" if each.share is None else f"{100 * each.share:.0f} %",
            "unknown" if each.claim is None else f"{each.claim:.3f}",
        )
        for each in found.tenants
    ]
    print_table(("tenant", "weight", "quota", "uses", "borrowed", "running", "waiting", "share", "claim"), rows)
    for each in found.tenants:
        for note in each.notes:
            say(f"{each.name}: {note}")
    if found.problem:
        warn(f"the file of tenants cannot be used, and what it said before stays in force: {found.problem}")


@tenants.command("check")
@handled
def check(
    file: FileArgument,
    as_json: JsonOption = False,
) -> None:
    """Check a file of tenants without a platform, and print what each tenant may use."""
    from updraft.tenants import read_tenants

    found = read_tenants(file, trusted=True).tenants
    if as_json:
        print_json({"tenants": {name: each.model_dump(mode="json") for name, each in found.items()}})
        return
    rows = [
        (
            name,
            f"{each.weight:g}",
            _devices(each.quota) or "no limits",
            _limits(each.quota, each.borrow, "any"),
            _limits(each.quota, each.lend, "all"),
            ", ".join(each.priorities),
        )
        for name, each in found.items()
    ]
    print_table(("tenant", "weight", "quota", "may borrow", "lends", "priorities"), rows)


@tenants.command("render")
@handled
def render(
    file: FileArgument,
    prefix: PrefixOption = PREFIX,
    system: SystemOption = SYSTEM,
    as_json: JsonOption = False,
) -> None:
    """Print the objects that the tenants need in a cluster, as YAML for `kubectl apply --filename -`."""
    import yaml

    objects = _objects(file, prefix, system)
    if as_json:
        print_json(objects)
        return
    typer.echo(yaml.safe_dump_all(objects, sort_keys=False), nl=False)


TAKE_OVER = (
    "\nAnother manager has changed these fields. To take them over: updraft tenants render FILE | "
    "kubectl apply --server-side --force-conflicts --field-manager=updraft-tenants --filename=-"
)


@tenants.command("apply")
@handled
def apply(
    file: FileArgument,
    prefix: PrefixOption = PREFIX,
    system: SystemOption = SYSTEM,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig; without it, the current one.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Let the cluster check the objects, and change nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Create or change the objects that the tenants need in a cluster, by your `kubectl`, whose kubeconfig has to be an
    administrator's. Tenants that the file no longer names keep theirs."""
    import json
    import shutil
    import subprocess

    from updraft.exceptions import UpdraftError

    if (kubectl := shutil.which("kubectl")) is None:
        raise UpdraftError("kubectl is not on PATH; install it, or apply what `updraft tenants render` prints")
    given = [f"--context={context}"] if context is not None else []
    given += ["--dry-run=server"] if dry_run else []
    given += ["--output=json"] if as_json else []
    listed = {"apiVersion": "v1", "kind": "List", "items": _objects(file, prefix, system)}
    command = [kubectl, "apply", "--server-side", "--field-manager=updraft-tenants", *given, "--filename=-"]
    done = subprocess.run(command, input=json.dumps(listed), capture_output=True, text=True, check=False)
    typer.echo(done.stdout, nl=False)
    if done.returncode != 0:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        advice = TAKE_OVER if "conflict" in said else ""
        raise UpdraftError(f"kubectl: {said}{advice}")


def _objects(file: Path, prefix: str, system: str) -> list[dict[str, Any]]:
    """Return what the tenants of a file need in a cluster."""
    from updraft.kubernetes.tenants import tenant_objects
    from updraft.tenants import read_tenants

    return [
        each
        for name, tenant in read_tenants(file, trusted=True).tenants.items()
        for each in tenant_objects(name, tenant, namespace=f"{prefix}{name}", system=system)
    ]


def _devices(numbers: Mapping[str, int]) -> str:
    """Return `4 gpu, 2 cpu`."""
    return ", ".join(f"{number} {kind}" for kind, number in sorted(numbers.items()))


def _limits(quota: Mapping[str, int], limits: Mapping[str, int], without: str) -> str:
    return ", ".join(f"{limits.get(kind, without)} {kind}" for kind in sorted(quota))
