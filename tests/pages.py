"""The fenced blocks of README.md and of the pages in docs/, as they stand there. Used by the tests that run them.

Of the pages in PAGES every block without a language, or with one of SHELL, is commands: tests/system/test_pages.py runs
them. A block whose first line begins with NOT_HERE is left out; what follows there is the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/howto/first-job.md",
    "docs/howto/bring-your-program.md",
    "docs/howto/write-a-program.md",
    "docs/howto/checkpoints.md",
    "docs/howto/frameworks.md",
    "docs/howto/mlflow.md",
    "docs/howto/halt-and-resume.md",
    "docs/howto/when-things-fail.md",
    "docs/howto/several-processes.md",
)
SHELL = ("", "sh", "bash", "shell", "console")
NOT_HERE = "# no test runs this: "
_HERE_DOCUMENT = re.compile(r"<<'(\w+)'$")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """`line` is that of the opening fence, from 1."""

    page: str
    line: int
    language: str
    text: str

    @property
    def is_commands(self) -> bool:
        return self.language in SHELL and not self.text.startswith(NOT_HERE)

    @property
    def commands(self) -> list[str]:
        """Return the lines, with the text of a here-document in the line that begins it."""
        found: list[str] = []
        end = ""
        for line in self.text.splitlines():
            if end:
                found[-1] += f"\n{line}"
                end = "" if line == end else end
            elif line.strip():
                found.append(line)
                end = match[1] if (match := _HERE_DOCUMENT.search(line)) else ""
        return found


def blocks(page: str) -> list[Block]:
    text = (REPOSITORY / page).read_text()
    return [Block(page, text.count("\n", 0, m.start()) + 1, m[1], m[2]) for m in _FENCE.finditer(text)]


def command_blocks(page: str) -> list[Block]:
    return [block for block in blocks(page) if block.is_commands]
