"""The reference page says what the commands say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from updraft.cli.app import app
from updraft.cli.reference import write

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"


def test_the_page_is_the_one_that_the_commands_write() -> None:
    assert PAGE.read_text() == write(), "run: python -m updraft.cli.reference > docs/reference/cli.md"


def test_everything_has_a_help_text_and_json() -> None:
    def check(command: Any, path: str) -> None:
        assert command.help, path
        for parameter in command.params:
            assert parameter.help, f"{path} {parameter.name}"
        subcommands = getattr(command, "commands", {})
        if not subcommands:
            assert "--json" in [flag for parameter in command.params for flag in parameter.opts], path
        for name, subcommand in subcommands.items():
            check(subcommand, f"{path} {name}")

    check(typer.main.get_command(app), "updraft")
