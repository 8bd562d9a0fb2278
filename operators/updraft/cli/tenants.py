"""Commands for tenants: what each may use of the cluster, and what it uses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from updraft.cli.console import JsonOption, handled, print_json, print_table, say, warn

tenants = typer.Typer(
    name="tenants", help="What each tenant may use of the cluster, and what it uses.", no_args_is_help=True
)


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
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of tenants.", exists=True, dir_okay=False)],
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
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of tenants.", exists=True, dir_okay=False)],
    prefix: Annotated[str, typer.Option(help="As UPDRAFT_NAMESPACE_PREFIX.")] = "updraft-",
    system: Annotated[str, typer.Option(help="Namespace of the platform's account.")] = "updraft-system",
    as_json: JsonOption = False,
) -> None:
    """Print the objects that the tenants need in a cluster, as YAML for `kubectl apply --filename -`."""
    import yaml

    from updraft.kubernetes.tenants import tenant_objects
    from updraft.tenants import read_tenants

    found = read_tenants(file, trusted=True).tenants
    objects = [
        each
        for name, tenant in found.items()
        for each in tenant_objects(name, tenant, namespace=f"{prefix}{name}", system=system)
    ]
    if as_json:
        print_json(objects)
        return
    typer.echo(yaml.safe_dump_all(objects, sort_keys=False), nl=False)


def _devices(numbers: Mapping[str, int]) -> str:
    """Return `4 gpu, 2 cpu`."""
    return ", ".join(f"{number} {kind}" for kind, number in sorted(numbers.items()))


def _limits(quota: Mapping[str, int], limits: Mapping[str, int], without: str) -> str:
    return ", ".join(f"{limits.get(kind, without)} {kind}" for kind in sorted(quota))
