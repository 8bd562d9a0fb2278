"""Decide which files of a code folder are left out: the patterns of a `.updraftignore`, with git's `.gitignore` syntax.

Only the file at the folder's root counts. Pure text matching; `trees.scan` walks the folder. docs/design/0010 says why
no library is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

IGNORE_FILE = ".updraftignore"
DEFAULT_PATTERNS = (
    ".git/",
    ".hg/",
    ".svn/",
    ".venv/",
    "__pycache__/",
    "*.pyc",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".ipynb_checkpoints/",
    ".tox/",
    "node_modules/",
    ".DS_Store",
    "updraft-out/",  # what programs write outside the platform
    "updraft-run/",  # what `updraft run --local` writes
    f"/{IGNORE_FILE}",
)


@dataclass(frozen=True)
class Piece:
    """The part of a name between two `*`: a text, or a regular expression without quantifiers, of `length`
    characters."""

    wanted: str | re.Pattern[str]
    length: int

    def find(self, name: str, start: int, stop: int) -> int:
        """Return where it begins first in name[start:stop]; -1 if nowhere."""
        if isinstance(self.wanted, str):
            return name.find(self.wanted, start, stop)
        found = self.wanted.search(name, start, stop)
        return -1 if found is None else found.start()


@dataclass(frozen=True)
class PartPattern:
    """The pattern of one part of a path: pieces with `*` between them, of which the first and the last may be empty.

    Each piece is matched at its first possible position, without backtracking. One regular expression for all pieces
    would backtrack: with twelve `*`, a name of 28 characters took a second, and seven times as long for each four
    characters more.
    """

    pieces: tuple[Piece, ...]

    def matches(self, name: str) -> bool:
        first, last = self.pieces[0], self.pieces[-1]
        at, stop = first.length, len(name) - last.length
        if len(self.pieces) == 1:
            return stop == 0 and first.find(name, 0, at) == 0
        if at > stop or first.find(name, 0, at) != 0 or last.find(name, stop, len(name)) != stop:
            return False
        for piece in self.pieces[1:-1]:
            found = piece.find(name, at, stop)
            if found < 0:
                return False
            at = found + piece.length
        return True


ANY_NAME = PartPattern((Piece("", 0), Piece("", 0)))


@dataclass(frozen=True)
class Pattern:
    names: tuple[PartPattern | None, ...]  # None: any number of folders
    negated: bool
    folders_only: bool

    def matches(self, path: Sequence[str]) -> bool:
        """Return whether the pattern matches the path, given as its parts. As with a name's pieces, only the folders
        that the latest None takes are tried."""
        last = self.names[-1]
        if last is not None and not last.matches(path[-1]):
            return False
        at = here = 0
        latest: tuple[int, int] | None = None  # what follows the latest None, and the next part of the path
        while here < len(path):
            more = at < len(self.names)
            name = self.names[at] if more else None
            if more and name is None:
                at += 1
                latest = (at, here)
            elif name is not None and name.matches(path[here]):
                at, here = at + 1, here + 1
            elif latest is not None:
                latest = (latest[0], latest[1] + 1)
                at, here = latest
            else:
                return False
        return all(name is None for name in self.names[at:])


@dataclass(frozen=True)
class Ignore:
    """Patterns in order; the last one that matches decides. An ignored folder is never searched."""

    patterns: tuple[Pattern, ...]

    @classmethod
    def parse(cls, lines: Iterable[str], *, defaults: bool = True) -> Ignore:
        texts = [*(DEFAULT_PATTERNS if defaults else ()), *lines]
        return cls(tuple(pattern for text in texts if (pattern := _parse(text)) is not None))

    def matches(self, path: str, *, is_folder: bool) -> bool:
        """Return whether `path`, relative and with forward slashes, is left out."""
        ignored, parts = False, path.split("/")
        for pattern in self.patterns:
            if (is_folder or not pattern.folders_only) and pattern.matches(parts):
                ignored = not pattern.negated
        return ignored


def _parse(text: str) -> Pattern | None:
    text = text.rstrip("\r\n")
    while text.endswith(" ") and not text.endswith("\\ "):
        text = text[:-1]
    if not text or text.startswith("#"):
        return None
    negated = text.startswith("!")
    text = text[1:] if negated else text
    folders_only = text.endswith("/")
    text = text.rstrip("/")
    if not text:
        return None
    anchored = "/" in text
    text = text.lstrip("/")
    names = [*([] if anchored else [None]), *_names(text)]
    return Pattern(tuple(names), negated, folders_only)


# A kind and a text: a character, or a regular expression for one character; `*` and `/` have no text.
_Token = tuple[Literal["character", "expression", "*", "/"], str]


def _names(glob: str) -> Iterator[PartPattern | None]:
    parts = _split(list(_tokens(glob)), "/")
    for number, part in enumerate(parts):
        if part != [("*", ""), ("*", "")]:
            pieces = [_piece(tokens) for tokens in _split(part, "*")]
            yield PartPattern((pieces[0], *(piece for piece in pieces[1:-1] if piece.length), *pieces[1:][-1:]))
            continue
        yield None
        if number == len(parts) - 1:
            yield ANY_NAME  # the content of the folder, not the folder itself


def _split(tokens: list[_Token], kind: str) -> list[list[_Token]]:
    parts: list[list[_Token]] = [[]]
    for token in tokens:
        if token[0] == kind:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _piece(tokens: list[_Token]) -> Piece:
    if all(kind == "character" for kind, _ in tokens):
        return Piece("".join(text for _, text in tokens), len(tokens))
    expression = "".join(text if kind == "expression" else re.escape(text) for kind, text in tokens)
    return Piece(re.compile(expression, re.DOTALL), len(tokens))


def _tokens(glob: str) -> Iterator[_Token]:
    at = 0
    while at < len(glob):
        character, size = glob[at], 1
        if character == "*":
            yield "*", ""
        elif character == "?":
            yield "expression", "."
        elif character == "[" and (end := _class_end(glob, at)) is not None:
            size = end + 1 - at
            yield from _class(glob[at : end + 1])
        elif character == "\\" and at + 1 < len(glob):
            size = 2
            yield from _literal(glob[at + 1])
        else:
            yield from _literal(character)
        at += size


def _literal(text: str) -> Iterator[_Token]:
    for character in text:
        yield ("/", "") if character == "/" else ("character", character)


def _class(text: str) -> Iterator[_Token]:
    body = text[1:-1].replace("\\", "\\\\").replace("[", "\\[")
    if body[0] in "!^":
        body = f"^{body[1:]}"
    try:
        re.compile(f"[{body}]")
    except re.error:
        yield from _literal(text)
    else:
        yield "expression", f"[{body}]"


def _class_end(glob: str, start: int) -> int | None:
    """Return the index of the `]` that closes the class opened at `start`; a `]` in first place belongs to the
    class."""
    at = start + 1
    if at < len(glob) and glob[at] in "!^":
        at += 1
    at += 1
    end = glob.find("]", at)
    return None if end < 0 else end
