"""Which files of a code folder are left out: the patterns of a `.updraftignore`, read as git reads `.gitignore`.

One file at the folder's root counts. Pure text matching; `trees.scan` walks the folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

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
    f"/{IGNORE_FILE}",
)


@dataclass(frozen=True)
class Pattern:
    regex: re.Pattern[str]
    negated: bool
    folders_only: bool


@dataclass(frozen=True)
class Ignore:
    """Patterns in order; the last one that matches decides. A folder that is ignored is never looked into."""

    patterns: tuple[Pattern, ...]

    @classmethod
    def parse(cls, lines: Iterable[str], *, defaults: bool = True) -> Ignore:
        texts = [*(DEFAULT_PATTERNS if defaults else ()), *lines]
        return cls(tuple(pattern for text in texts if (pattern := _parse(text)) is not None))

    def matches(self, path: str, *, is_folder: bool) -> bool:
        """Whether `path`, relative and with forward slashes, is left out."""
        ignored = False
        for pattern in self.patterns:
            if (is_folder or not pattern.folders_only) and pattern.regex.fullmatch(path):
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
    prefix = "" if anchored else "(?:.*/)?"
    return Pattern(re.compile(prefix + _translate(text), re.DOTALL), negated, folders_only)


def _translate(glob: str) -> str:
    out, at = [], 0
    while at < len(glob):
        rest = glob[at:]
        if rest.startswith("**/") and (at == 0 or glob[at - 1] == "/"):
            out.append("(?:.*/)?")
            at += 3
        elif rest == "**" and (at == 0 or glob[at - 1] == "/"):
            out.append(".+")
            at += 2
        elif rest[0] == "*":
            out.append("[^/]*")
            at += 1
        elif rest[0] == "?":
            out.append("[^/]")
            at += 1
        elif rest[0] == "[" and (end := _class_end(glob, at)) is not None:
            body = glob[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            if body[0] in "!^":
                body = "^/" + body[1:]
            try:
                re.compile(f"[{body}]")
            except re.error:
                out.append(re.escape(glob[at : end + 1]))
            else:
                out.append(f"[{body}]")
            at = end + 1
        elif rest[0] == "\\" and len(rest) > 1:
            out.append(re.escape(rest[1]))
            at += 2
        else:
            out.append(re.escape(rest[0]))
            at += 1
    return "".join(out)


def _class_end(glob: str, start: int) -> int | None:
    """Index of the `]` that closes the class opened at `start`; a `]` in first place belongs to the class."""
    at = start + 1
    if at < len(glob) and glob[at] in "!^":
        at += 1
    at += 1
    end = glob.find("]", at)
    return None if end < 0 else end
