"""Commands that create and end jobs: validate, submit, export, cancel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from updraft.cli.console import (
    Exit,
    JobArgument,
    JsonOption,
    error_fields,
    handled,
    note,
    print_json,
    report,
    say,
    size,
    warn,
)
from updraft.exceptions import DataError, RefusedError, UnavailableError
from updraft.terminal import program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from updraft.client import Client
    from updraft.manifest import Loaded
    from updraft.schemas import Planned, Validation

MANIFEST_NAMES = ("manifest.yaml", "manifest.yml", "manifest.json")


def manifest_of(path: Path) -> Path:
    """Return the manifest that `path` means: the file itself, or the one in a folder. Raises typer.BadParameter."""
    if not path.is_dir():
        return path
    for name in MANIFEST_NAMES:
        if (path / name).exists():
            return path / name
    raise typer.BadParameter(f"the folder {path} has no {MANIFEST_NAMES[0]}; `{program()} init {path}` writes one")


ManifestArgument = Annotated[
    Path,
    typer.Argument(
        metavar="MANIFEST",
        help="YAML or JSON file of a job, or the folder of its manifest.yaml; an FfDL V1 manifest is converted.",
        callback=manifest_of,
    ),
]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Show the job until it ends.")]


def register(app: typer.Typer) -> None:
    app.command()(validate)
    app.command()(submit)
    app.command("export")(export_job)


@handled
def validate(
    manifest: ManifestArgument,
    offline: Annotated[bool, typer.Option("--offline", help="Check the file alone; do not ask the platform.")] = False,
    pods: Annotated[
        bool, typer.Option("--pods", help="Print the Kubernetes objects that the job would create, as YAML.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a manifest: every wrong field at once, and what this version does not act on yet."""
    from updraft.client import Client
    from updraft.client.submission import read_manifest
    from updraft.manifest import ManifestError

    if pods and offline:
        raise typer.BadParameter("--pods needs the platform, whose settings decide; leave --offline out")
    warnings: list[str] = []
    planned: Planned | None = None
    try:
        loaded = read_manifest(manifest)
        warnings += loaded.warnings
        if not offline:
            with Client() as client:
                found = _judged(client, loaded)
                if found.valid and pods:
                    planned = client.planned(loaded.manifest.given())
            warnings += [w for w in found.warnings if w not in warnings]
            if not found.valid:
                _refuse(str(manifest), [e.model_dump() for e in found.errors], warnings, as_json=as_json)
    except ManifestError as exc:
        if not as_json:
            raise
        _refuse(str(manifest), error_fields(exc), warnings, as_json=True)
    except UnavailableError as exc:
        if pods:
            raise
        warn(f"only the manifest was checked, the platform does not answer: {exc}")
    if as_json:
        shown = {} if planned is None else {"planned": planned.model_dump(mode="json")["roles"]}
        print_json({"valid": True, "errors": [], "warnings": warnings, **shown})
        return
    for warning in warnings:
        warn(warning)
    if planned is not None:
        from updraft.cli.planned import print_planned

        print_planned(planned)
        return
    say(f"{manifest}: valid", "green")


def _judged(client: Client, loaded: Loaded) -> Validation:
    """Return the platform's check of the manifest and of what it needs; only of the manifest, if the user may not start
    jobs."""
    try:
        return client.possible(loaded.manifest.given(), secrets=loaded.secrets)
    except RefusedError as exc:
        warn(f"only the manifest was checked, not the image, the nodes, the data and the secrets it needs: {exc}")
        return client.validate(loaded.manifest.given())


def _refuse(source: str, errors: list[dict[str, str]], warnings: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json({"valid": False, "errors": errors, "warnings": warnings})
    else:
        from updraft.client.http import InvalidRequestError

        fields = tuple((error["field"], error["message"]) for error in errors)
        report(InvalidRequestError(f"{source}: the platform refuses it", fields), as_json=False)
    raise typer.Exit(Exit.USAGE)


@handled
def submit(
    manifest: ManifestArgument,
    job_id: Annotated[
        str | None,
        typer.Option("--id", help="Id of the job; the same manifest under the same id is submitted once."),
    ] = None,
    params: Annotated[
        list[str] | None,
        typer.Option(
            "--params",
            metavar="NAME=VALUE",
            help="Another value for one of the manifest's params, such as epochs=5; may be given again.",
        ),
    ] = None,
    follow: FollowOption = False,
    as_json: JsonOption = False,
) -> None:
    """Pack and upload the code, start the job, print its id."""
    from updraft.client import Client

    given = read_assignments("--params", params or [])
    with Client() as client:
        with _upload_display(quiet=as_json) as on_progress:
            job = client.submit(manifest, job_id=job_id, on_progress=on_progress, params=given, on_wait=note)
        for warning in job.warnings:
            warn(warning)
        if not as_json:
            say(f"{job.id} {'was submitted before' if job.existed else 'submitted'}")
            if not follow:
                say(f"follow it with: {program()} show {job.id} --follow")
        if not follow:
            if as_json:
                print_json({"id": job.id, "existed": job.existed, "warnings": list(job.warnings)})
            return
        follow_to_end(client, job.id, as_json=as_json)


def read_assignments(option: str, assignments: list[str]) -> dict[str, str]:
    """Parse `name=value` assignments. Raises DataError."""
    given: dict[str, str] = {}
    for item in assignments:
        name, equals, value = item.partition("=")
        if not equals or not name or name in given:
            raise DataError(f"{option} {item!r}: write NAME=VALUE, each name once, such as lr=0.01")
        given[name] = value
    return given


def follow_to_end(client: Client, job_id: str, *, as_json: bool) -> None:
    """Show the job until it ends; leaves with Exit.FAILED unless it COMPLETED. Also behind `updraft show --follow`."""
    from updraft.cli.live import follow

    try:
        final = client.wait(job_id) if as_json else follow(client, job_id)
    except KeyboardInterrupt:
        name = program()
        warn(f"job {job_id} goes on; `{name} show {job_id} --follow` shows it, `{name} cancel {job_id}` ends it")
        raise
    if as_json:
        print_json(final)
    if final.state != "COMPLETED":
        raise typer.Exit(Exit.FAILED)


def _upload_display(*, quiet: bool) -> AbstractContextManager[Callable[[str, int, int], None] | None]:
    from contextlib import contextmanager, nullcontext

    if quiet or not sys.stderr.isatty():
        return nullcontext(None)

    @contextmanager
    def shown() -> Iterator[Callable[[str, int, int], None]]:
        from rich.progress import BarColumn, Progress, TextColumn

        from updraft.cli.console import err

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
        with Progress(*columns, console=err(), transient=True) as progress:
            tasks = {}

            def on_progress(label: str, done_bytes: int, total_bytes: int) -> None:
                if label not in tasks:
                    tasks[label] = progress.add_task(f"uploading {label}", total=total_bytes, amount="")
                progress.update(tasks[label], completed=done_bytes, amount=f"{size(done_bytes)} of {size(total_bytes)}")

            yield on_progress

    return shown()


@handled
def export_job(
    job: JobArgument,
    manifest: Annotated[
        Path | None, typer.Argument(metavar="[MANIFEST]", help="A mended manifest; default: that of the job.")
    ] = None,
    follow: FollowOption = False,
    as_json: JsonOption = False,
) -> None:
    """Evaluate, export, register and promote what an ended job stored, in a new job, without training again."""
    from updraft.client import Client
    from updraft.client.export_again import export_again

    with Client() as client:
        with _upload_display(quiet=as_json) as on_progress:
            made = export_again(client, job, manifest, on_progress=on_progress)
        for warning in made.warnings:
            warn(warning)
        if not as_json:
            say(f"{made.id} submitted; it begins with the results of {job}")
        if follow:
            follow_to_end(client, made.id, as_json=as_json)
        elif as_json:
            print_json({"id": made.id, "exported_from": job})
