"""Commands for code on this machine, before there is a job: init, run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from updraft.cli.console import Exit, JsonOption, handled, note, print_json, say
from updraft.cli.jobs import MANIFEST_NAMES, ManifestArgument, read_assignments
from updraft.exceptions import RefusedError
from updraft.terminal import program as called

if TYPE_CHECKING:
    from updraft.client.local_run import LocalRun
    from updraft.manifest import Manifest

PREEMPTED = 75  # `ExitCode.PREEMPTED` of a program's contract


def register(app: typer.Typer) -> None:
    for command in (init, run):
        app.command()(command)


@handled
def init(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder of the code.")] = Path(),
    name: Annotated[str | None, typer.Option(help="Name of the job; default: from the folder's name.")] = None,
    program: Annotated[
        str | None, typer.Option(metavar="FILE", help="The file to start; default: train.py, main.py or the only one.")
    ] = None,
    framework: Annotated[
        str | None, typer.Option(help="Framework whose image runs it; default: from what the files import.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a manifest that exists.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a manifest for a folder of code, from what its files say. Nothing is run and nothing is sent."""
    from updraft.client.project import draft, look
    from updraft.manifest import parse

    path = folder / MANIFEST_NAMES[0]
    if path.exists() and not force:
        raise RefusedError(f"{path} exists; change it by hand, or replace it with --force")
    found = look(folder, program=program, framework=framework)
    fields = draft(found, name)
    parse(fields, folder, source=str(path))
    _write(path, fields)
    if as_json:
        print_json({"manifest": str(path), "fields": fields})
        return
    say(f"{path}: {found.program} as `{found.command}` with {found.framework}")
    if "environment" in fields:
        say(f"packages: those of {found.requirements} are added to the image")
    if "checkpoints" in fields:
        say(f"checkpoints: {found.own_checkpoints}, as the Trainer saves them, are kept and restored")
    if not found.saves_model:
        say(
            "No file calls updraft_learner.save_model, so no model will be registered; docs/howto/write-a-program.md "
            "says how to call it."
        )
    say(f"next: {called()} submit {folder} --follow")


def _write(path: Path, fields: dict[str, Any]) -> None:
    import yaml

    text = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, default_flow_style=None)
    path.write_text(f"# Every field: docs/reference/manifest.md\n{text}", encoding="utf-8")


@handled
def run(
    manifest: ManifestArgument,
    local: Annotated[
        bool, typer.Option("--local", help="As processes of this machine, with its Python and its packages.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of the run; default: updraft-run/NAME.")
    ] = None,
    params: Annotated[
        list[str] | None,
        typer.Option("--params", metavar="NAME=VALUE", help="Another value for a param; may be given again."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="AS=PATH", help="A folder or file in place of a data set; may be given again."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Remove checkpoints and results of earlier runs first.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Try a job's program on this machine, without the platform. A second run goes on from the last checkpoint."""
    from updraft.client.local_run import DEFAULT_FOLDER, run_local, with_local_data
    from updraft.client.submission import base_folder, read_manifest
    from updraft.manifest import parse
    from updraft.manifest.revision import with_params

    if not local:
        raise typer.BadParameter(
            f"give --local to run the program on this machine; `{called()} submit --follow` runs it on the platform"
        )
    job = read_manifest(manifest).manifest
    if params:
        job = parse(with_params(job.canonical(), read_assignments("--params", params)), source="--params")
    job = with_local_data(job, read_assignments("--data", data or []))
    place = folder or Path(DEFAULT_FOLDER) / job.name
    ended = run_local(job, base_folder(manifest, None), place, os.environ, fresh=fresh, to_stderr=as_json)
    if as_json:
        print_json({"folder": str(ended.folder), "exit_code": ended.exit_code, "metrics": ended.metrics})
    else:
        _tell(ended, job)
    if ended.exit_code:
        raise typer.Exit(Exit.FAILED)


def _tell(ended: LocalRun, job: Manifest) -> None:
    if ended.exit_code == PREEMPTED:
        say("stopped on request; run the command again to go on from the last checkpoint")
    else:
        say(f"the program ended with exit code {ended.exit_code}")
    say(f"results ({len(ended.results)}), checkpoints and logs are in {ended.folder}")
    if ended.metrics:
        say("metrics: " + ", ".join(f"{name} {value}" for name, value in ended.metrics.items()))
    if ended.tracking_uri:
        say(f"MLflow: mlflow ui --backend-store-uri {ended.tracking_uri}")
    if ended.exit_code not in (0, PREEMPTED) and job.environment is not None:
        install = "-r " + job.environment.file if job.environment.file else " ".join(job.environment.requirements)
        note(f"environment: its packages are not installed here; if one is missing: pip install {install}")
    left_out = [name for name in ("evaluate", "export") if getattr(job, name) is not None]
    if left_out:
        note(f"{' and '.join(left_out)}: only the platform does this")
