"""The command that writes a manifest for a folder of code: init."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from updraft.cli.console import JsonOption, handled, print_json, say
from updraft.exceptions import RefusedError
from updraft.terminal import program as called

MANIFEST = "manifest.yaml"


def register(app: typer.Typer) -> None:
    app.command()(init)


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

    path = folder / MANIFEST
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
    if not found.saves_model:
        say(
            "No file calls updraft_learner.save_model, so no model will be registered; docs/howto/write-a-program.md "
            "says how to call it."
        )
    say(f"next: {called()} submit {path} --follow")


def _write(path: Path, fields: dict[str, Any]) -> None:
    import yaml

    text = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, default_flow_style=None)
    path.write_text(f"# Every field: docs/reference/manifest.md\n{text}", encoding="utf-8")
