"""The blocks of docs/howto/deploy.md, each with what its first line says of it. Used by the tests that run them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "deploy.md"
CLUSTER, SYSTEM, NOT_HERE = "tested: cluster", "tested: system", "not executed here"


@dataclass(frozen=True)
class Block:
    """`mark`: one of the three above, or whatever else stands in the first line."""

    mark: str
    text: str


def blocks() -> list[Block]:
    found = re.findall(r"^```\w*\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [_block(text) for text in found]


def marked(mark: str) -> list[str]:
    return [block.text for block in blocks() if block.mark == mark]


def _block(text: str) -> Block:
    first, _, rest = text.partition("\n")
    return Block(re.sub(r"^(#|--) ", "", first), rest)
