"""Below the edges nothing reaches for the process's own settings: they are handed down (docs/design/0020)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import updraft

ROOT = Path(updraft.__file__).parent
BELOW = [
    path
    for folder in ("controller", "storage", "kubernetes", "ledger", "triggers", "recovery", "allocation", "lifecycle")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
MAKERS = {"settings", "platform_services", "services_of"}


@pytest.mark.parametrize("path", BELOW, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_below_the_edges_makes_its_own(path: Path) -> None:
    names = {
        alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module in ("updraft.settings", "updraft.services")
        for alias in node.names
    }
    assert names & MAKERS == set()
