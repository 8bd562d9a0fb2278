"""What the command line and the embedded stack print on a terminal: clean text, commands that can be typed, tables.

Below both, as neither may import the other. rich is imported when something is printed.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console

STRETCH_COLUMNS = 24  # less room than that is none for a sentence
PIPE_COLUMNS = 4_000  # a pipe has no width

# Colours too: a colour that a cut line never takes back would colour everything that follows.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]?"
)
_COMMAND = re.compile(r"`updraft(?=[ `])")


def plain(text: str) -> str:
    """Return text from elsewhere without what could take a terminal over or show something else than it says: escape
    sequences, control characters (but tab and newline), invisible and direction-changing ones."""
    shown = (c if c.isprintable() or c in "\t\n" else " " if c.isspace() else "" for c in _ESCAPES.sub("", text))
    return "".join(shown)


def program() -> str:
    """Return what to type for this command: `updraft` where the shell finds it, else its path."""
    if named := os.environ.get("UPDRAFT_PROGRAM"):  # by scripts/bootstrap.py, whose PATH is not the shell's
        return named
    own, found = Path(sys.executable).parent / "updraft", shutil.which("updraft")
    if not own.exists() or (found is not None and os.path.samefile(found, own)):
        return "updraft"
    return os.path.relpath(own)


def typed(text: str) -> str:
    """Return the text with each command in it, such as `updraft up` in backticks, as it has to be typed here."""
    return _COMMAND.sub(lambda _found: f"`{program()}", text)


def print_table(
    console: Console,
    headings: Sequence[str],
    rows: Sequence[Sequence[Any]],
    stretch: str | None = None,
    *,
    right: Collection[str] = (),
) -> None:
    """Print a table on a terminal; in a pipe, one line for each row. No cell is ever cut: on a terminal that is too
    narrow for all columns, `stretch` is on a line of its own below its row, and other columns that do not fit follow it
    as `heading value`. Columns in `right` are right-aligned."""
    from rich.table import Table
    from rich.text import Text

    if console.is_terminal:
        narrow = _fold(headings, [[_cell(str(cell), console) for cell in row] for row in rows], stretch, console.width)
        if narrow is not None:
            _print_folded(console, headings, rows, *narrow, right)
            return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        side: Literal["right", "left"] = "right" if heading in right else "left"
        table.add_column(heading, no_wrap=heading != stretch, overflow="fold", justify=side)
    for row in rows:
        cells = [cell if isinstance(cell, Text) else Text(str(cell)) for cell in row]
        table.add_row(*(Text(_cell(cell.plain, console), cell.style) for cell in cells))
    if not console.is_terminal:
        console.width = PIPE_COLUMNS
    console.print(table)


def _fold(
    headings: Sequence[str], rows: list[list[str]], stretch: str | None, width: int
) -> tuple[list[int], list[int]] | None:
    """Return which columns stay in the table and which stand below each row; None when everything fits as it is."""
    widths = [max(len(line) for line in (head, *(row[n] for row in rows))) for n, head in enumerate(headings)]
    whole = [n for n, head in enumerate(headings) if head != stretch]
    room = width - sum(widths[n] + 2 for n in whole)
    last = list(headings).index(stretch) if stretch is not None and stretch in headings else None
    if room >= 0 and (last is None or room >= min(widths[last], STRETCH_COLUMNS)):
        return None
    stay: list[int] = []
    for n in whole:  # in the order of their weight: the first ones say which row it is
        if sum(widths[m] + 2 for m in (*stay, n)) <= width or not stay:
            stay.append(n)
    below = [n for n in whole if n not in stay] + ([last] if last is not None else [])
    return stay, below


def _print_folded(
    console: Console,
    headings: Sequence[str],
    rows: Sequence[Sequence[Any]],
    stay: list[int],
    below: list[int],
    right: Collection[str],
) -> None:
    from rich.padding import Padding
    from rich.text import Text

    def text(cell: Any) -> Text:
        return Text(_cell(str(cell), console), cell.style if isinstance(cell, Text) else "")

    widths = [max(len(headings[n]), *(len(text(row[n])) for row in rows)) for n in stay]
    columns = list(zip(stay, widths, strict=True))
    head = "  ".join(f"{headings[n]:{'>' if headings[n] in right else '<'}{width}}" for n, width in columns)
    console.print(Text(head.rstrip(), "bold"), soft_wrap=True)
    for row in rows:
        line = Text()
        for n, width in columns:
            cell, room = text(row[n]), " " * (width - len(text(row[n])))
            line.append_text(Text(room) + cell if headings[n] in right else cell + Text(room)).append("  ")
        line.rstrip()
        console.print(line, soft_wrap=True)
        parts = [
            (words if headings[n] in ("reason", "metrics") else f"{headings[n]} {words}")
            for n in below
            if (words := text(row[n]).plain)
        ]
        if parts:
            console.print(Padding(Text("; ".join(parts), "dim"), (0, 0, 0, 4)))


def _cell(text: str, console: Console) -> str:
    """Replace tabs: a table lays out its columns by itself."""
    clean = typed(plain(text)).replace("\t", " ")
    return clean if console.is_terminal else clean.replace("\n", " ")
