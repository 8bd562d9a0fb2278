"""Reference pages that are made from the source say what the source says."""

from __future__ import annotations

import pytest
from pages import REPOSITORY
from reference import PAGES, failures, manifest

from updraft.manifest import limits, load


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_the_one_that_the_source_makes(name: str) -> None:
    published = (REPOSITORY / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert published == PAGES[name](), "run: make reference"


def test_the_page_of_failures_shows_a_manifest_that_is_right() -> None:
    example = failures.page().split("```yaml\n")[1].split("```")[0]
    assert len(load(f"name: a\nimage: b\ncommand: c\n{example}").failures) == 3


def test_the_page_of_the_manifest_lists_every_limit() -> None:
    listed = {number for _, number in manifest.LIMITS}
    assert {number for name, number in vars(limits).items() if name.isupper()} <= listed
