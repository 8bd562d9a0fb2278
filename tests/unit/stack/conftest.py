"""A home in a temporary folder, with this checkout as its repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from updraft.stack.layout import Home, find_repository


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(root=tmp_path / "home", repository=find_repository())
    made.run.mkdir(parents=True)
    return made
