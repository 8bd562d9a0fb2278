"""The reference page says what the routes say."""

from __future__ import annotations

from pathlib import Path

from updraft.api.reference import write

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "api.md"


def test_the_page_is_the_one_that_the_routes_write() -> None:
    assert PAGE.read_text() == write(), "run: python -m updraft.api.reference > docs/reference/api.md"
