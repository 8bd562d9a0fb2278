"""Every command says what it does."""

from __future__ import annotations

from typing import Any

import typer

from updraft.cli.app import app


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
