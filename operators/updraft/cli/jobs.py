"""Commands that make and end jobs: validate, submit, cancel."""

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
    print_json,
    report,
    say,
    size,
    warn,
)
from updraft.exceptions import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from updraft.client import Client

ManifestArgument = Annotated[
    Path, typer.Argument(metavar="MANIFEST", help="YAML or JSON file of a job; an FfDL V1 manifest is converted.")
]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Show the job until it ends.")]


def register(app: typer.Typer) -> None:
    app.command()(validate)
    app.command()(submit)
    app.command()(cancel)


@handled
def validate(
    manifest: ManifestArgument,
    offline: Annotated[bool, typer.Option("--offline", help="Check the file alone; do not ask the platform.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a manifest: every wrong field at once, and what this version does not act on yet."""
    from updraft.client import Client
    from updraft.client.submission import read_manifest
    from updraft.manifest import ManifestError

    warnings: list[str] = []
    try:
        loaded = read_manifest(manifest)
        warnings += loaded.warnings
        if not offline:
            with Client() as client:
                found = client.validate(loaded.manifest.canonical())
            warnings += [w for w in found.warnings if w not in warnings]
            if not found.valid:
                _refuse(str(manifest), [e.model_dump() for e in found.errors], warnings, as_json=as_json)
    except ManifestError as exc:
        if not as_json:
            raise
        _refuse(str(manifest), error_fields(exc), warnings, as_json=True)
    except UnavailableError as exc:
        warn(f"only the file was checked, the platform was not asked: {exc}")
    if as_json:
        print_json({"valid": True, "errors": [], "warnings": warnings})
        return
    for warning in warnings:
        warn(warning)
    say(f"{manifest}: valid", "green")


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
    follow: FollowOption = False,
    as_json: JsonOption = False,
) -> None:
    """Pack and upload the code, start the job, print its id."""
    from updraft.client import Client

    with Client() as client:
        with _upload_display(quiet=as_json) as on_progress:
            job = client.submit(manifest, job_id=job_id, on_progress=on_progress)
        for warning in job.warnings:
            warn(warning)
        if not as_json:
            say(f"{job.id} {'was submitted before' if job.existed else 'submitted'}")
            if not follow:
                say(f"follow it with: updraft show {job.id} --follow")
        if not follow:
            if as_json:
                print_json({"id": job.id, "existed": job.existed, "warnings": list(job.warnings)})
            return
        follow_to_end(client, job.id, as_json=as_json)


def follow_to_end(client: Client, job_id: str, *, as_json: bool) -> None:
    """Show the job until it ends; leaves with Exit.FAILED unless it COMPLETED. Also behind `updraft show --follow`."""
    from updraft.cli.live import follow

    try:
        final = client.wait(job_id) if as_json else follow(client, job_id)
    except KeyboardInterrupt:
        warn(f"job {job_id} goes on; `updraft show {job_id} --follow` shows it, `updraft cancel {job_id}` ends it")
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
def cancel(job: JobArgument, as_json: JsonOption = False) -> None:
    """Ask a job to end as CANCELLED. Its checkpoints and logs stay."""
    from updraft.client import Client

    with Client() as client:
        message = client.cancel(job)
    if as_json:
        print_json({"id": job, "message": message})
    else:
        say(f"{job}: {message}")
