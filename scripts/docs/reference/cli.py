"""The reference page of the command line, made from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from updraft.cli.app import app
from updraft.cli.console import EXIT_MEANINGS

VALUES = {int: "N", float: "N", Path: "PATH"}
HEAD = """# The command `updraft`

<!-- Made by `make reference`; change the commands, not this page. -->

`updraft` is an HTTP client of Airflow and of the plugin's routes ([api.md](api.md)); it touches no database. It finds
the platform by `UPDRAFT_AIRFLOW_URL` with `UPDRAFT_AIRFLOW_TOKEN_FILE`, by the home that `UPDRAFT_HOME`
names, by what `updraft login` has saved, or by the home `.updraft` that `updraft up` has made in the checkout; the
first of them that exists counts. Every command has `--help`; with `--json` it prints one JSON
document on standard output, and errors as `{"error": {"message", "fields", "exit_code"}}` on standard error.
`updraft --install-completion` sets up completion in your shell.

The same verbs are functions in Python: `import updraft; updraft.submit("manifest.yaml").wait()`.
"""


def page() -> str:
    """Return docs/reference/cli.md."""
    codes = "\n".join(f"| {int(code)} | {meaning} |" for code, meaning in EXIT_MEANINGS.items())
    parts = [HEAD, f"## Exit codes\n\n| code | meaning |\n|---|---|\n{codes}\n"]
    parts += _command(typer.main.get_command(app), "updraft")
    return "\n".join(parts)


def _command(command: Any, path: str) -> Iterator[str]:
    """Yield a group's options and commands, or a command's arguments and options."""
    subcommands: dict[str, Any] = getattr(command, "commands", {})
    level = "##" if path.count(" ") < 2 else "###"
    yield f"{level} {path}\n\n{_one_line(command.help)}\n"
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    if not subcommands:
        usage = " ".join([path, *(["[OPTIONS]"] if options else []), *(_metavar(a) for a in arguments)])
        yield f"```\n{usage}\n```\n"
    if arguments or options:
        rows = [f"| `{_metavar(a)}` | {_one_line(a.help)} |" for a in arguments]
        rows += [f"| `{_flags(o)}` | {_one_line(o.help)}{_default(o)} |" for o in options]
        yield "\n".join(["| | |", "|---|---|", *rows]) + "\n"
    for name, subcommand in subcommands.items():
        yield from _command(subcommand, f"{path} {name}")


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _metavar(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper())
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _flags(option: Any) -> str:
    value = "" if option.is_flag else f" {VALUES.get(option.type_descriptor.annotation, 'TEXT')}"
    return ", ".join(option.opts) + value


def _default(option: Any) -> str:
    shown = option.default not in (None, False, ()) and not option.is_flag
    return f" Default: {option.default}." if shown else ""
