"""Print what commands say: text for people, JSON for programs, errors with the exit code of their kind."""

from __future__ import annotations

import functools
import json
import re
import sys
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

from updraft import terminal
from updraft.exceptions import DataError, NotFoundError, RefusedError, UnavailableError, UpdraftError
from updraft.terminal import plain, typed

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console

P = ParamSpec("P")
R = TypeVar("R")


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    FAILED = 1  # the job failed or was cancelled, or the command could not do its work
    USAGE = 2  # wrong use, or a manifest, code or data that is wrong
    REFUSED = 3  # understood, but not allowed or not possible here and now
    UNAVAILABLE = 4  # a part of the platform does not answer
    NOT_FOUND = 5  # no such job, file or secret
    INTERRUPTED = 130  # by Ctrl-C


EXIT_MEANINGS = {
    Exit.OK: "done; with `--follow`, the job COMPLETED; with `--wait`, what was asked for has happened",
    Exit.FAILED: "the job FAILED or was CANCELLED, or the command could not do its work",
    Exit.USAGE: "wrong use of the command, or a manifest, a change of it, code or data that is wrong",
    Exit.REFUSED: "understood, but not allowed or not possible here and now",
    Exit.UNAVAILABLE: "a part of the platform does not answer; with `--wait`, the job did not obey in time",
    Exit.NOT_FOUND: "no such job, file or secret",
    Exit.INTERRUPTED: "interrupted by Ctrl-C; a job that was being followed goes on",
}

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job, as `updraft list` shows it.")]


_UNSEEN = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")  # JSON would leave these as they are


def folded(text: str, console: Console, hang: int) -> str:
    """Break lines that are too long for the terminal between words, and continue them after `hang` spaces. A line with
    a word that does not fit, such as an address, stays whole, as does all text without a terminal."""
    if not console.is_terminal:
        return text

    def fold(line: str) -> str:
        if max((len(word) for word in line.split()), default=0) + hang > console.width:
            return line
        return textwrap.fill(
            line,
            console.width,
            subsequent_indent=" " * hang,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        )

    return "\n".join(fold(line) for line in text.split("\n"))


def out() -> Console:
    from rich.console import Console

    return Console(highlight=False, emoji=False, soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def say(text: str, style: str | None = None) -> None:
    """Print a line. Text from elsewhere is never read as markup, nor as control characters by the terminal."""
    out().print(typed(plain(text)), style=style, markup=False)


def note(text: str) -> None:
    """Print what the command is doing, apart from its own output."""
    err().print(typed(plain(text)), markup=False)


def warn(text: str) -> None:
    err().print(typed(plain(f"warning: {text}")), style="yellow", markup=False)


def print_json(value: BaseModel | Any) -> None:
    sys.stdout.write(as_json_text(value, indent=2) + "\n")


def as_json_text(value: BaseModel | Any, indent: int | None = None) -> str:
    """Return one JSON document; characters that a terminal acts on are written as escapes."""
    from pydantic import BaseModel

    raw = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    text = json.dumps(raw, indent=indent, default=str, ensure_ascii=False)
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def exit_code(exc: UpdraftError) -> Exit:
    from updraft.client.http import InvalidRequestError
    from updraft.manifest.errors import ManifestError

    if isinstance(exc, ManifestError | DataError | InvalidRequestError):
        return Exit.USAGE
    if isinstance(exc, NotFoundError):
        return Exit.NOT_FOUND
    if isinstance(exc, UnavailableError):
        return Exit.UNAVAILABLE
    if isinstance(exc, RefusedError):
        return Exit.REFUSED
    return Exit.FAILED


def error_fields(exc: UpdraftError) -> list[dict[str, str]]:
    from updraft.client.http import InvalidRequestError
    from updraft.manifest.errors import ManifestError

    if isinstance(exc, ManifestError):
        return [{"field": field.path, "message": field.text} for field in exc.fields]
    if isinstance(exc, InvalidRequestError):
        return [{"field": field, "message": message} for field, message in exc.fields]
    return []


def report(exc: UpdraftError, *, as_json: bool) -> None:
    """Print the error on standard error: one line, and one for each wrong field."""
    from updraft.client.http import InvalidRequestError

    if as_json:
        document = {"error": {"message": str(exc), "fields": error_fields(exc), "exit_code": int(exit_code(exc))}}
        sys.stderr.write(as_json_text(document, indent=2) + "\n")
        return
    console = err()
    console.print("error:", style="bold red", end="")
    console.print(folded(typed(plain(f"error: {exc}")), console, 4).removeprefix("error:"), markup=False)
    if isinstance(exc, InvalidRequestError):
        for field, message in exc.fields:
            if message in str(exc):  # the text of the platform's own errors already contains their fields
                continue
            line = plain(f"  {message if message.startswith(field) else f'{field}: {message}'}")
            console.print(folded(typed(line), console, 4), markup=False)


def handled(command: Callable[P, R]) -> Callable[P, R]:
    """Give a command its errors and exit codes; everything else is a defect and keeps its traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except UpdraftError as exc:
            report(exc, as_json=bool(kwargs.get("as_json")))
            raise typer.Exit(exit_code(exc)) from exc
        except (KeyboardInterrupt, typer.Abort) as exc:
            err().print("interrupted", style="yellow")
            raise typer.Exit(Exit.INTERRUPTED) from exc
        except BrokenPipeError as exc:  # the reader, such as `head`, has ended
            sys.stdout = None
            raise typer.Exit(Exit.OK) from exc

    return run


STATE_STYLES = {
    "COMPLETED": "bold green",
    "FAILED": "bold red",
    "CANCELLED": "bold yellow",
    "QUEUED": "cyan",
    "PENDING": "cyan",
    "HALTED": "yellow",
    "RECOVERING": "yellow",
}


def state_style(state: str) -> str:
    return STATE_STYLES.get(state, "blue")


def ago(moment: datetime | None) -> str:
    if moment is None:
        return "-"
    return f"{duration((datetime.now(UTC) - moment).total_seconds())} ago"


def duration(seconds: float) -> str:
    whole = max(int(seconds), 0)
    if 0 < seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if 0 < seconds < 10:
        return f"{seconds:.1f} s"
    if whole < 100:
        return f"{whole} s"
    if whole < 6_000:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 360_000:
        return f"{whole // 3_600} h {whole % 3_600 // 60:02d} min"
    return f"{whole // 86_400} d"


def size(count_bytes: int) -> str:
    amount = float(count_bytes)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def number(value: float | None) -> str:
    return "NaN" if value is None else f"{value:.5g}"


def print_table(headings: tuple[str, ...], rows: list[tuple[Any, ...]], stretch: str | None = None) -> None:
    terminal.print_table(out(), headings, rows, stretch)
