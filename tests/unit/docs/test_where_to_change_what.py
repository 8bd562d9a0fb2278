"""The files and names that `docs/architecture.md` sends people to exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import REPOSITORY

PLACES = (REPOSITORY / "operators" / "updraft", REPOSITORY)
TABLE = (REPOSITORY / "docs" / "architecture.md").read_text().split("## Where to change what")[1]


def found(name: str) -> Path | None:
    return next((place / name for place in PLACES if (place / name).exists()), None)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w./]+(?:\.py|\.html|\.md|/))`", TABLE))))
def test_each_file_exists(name: str) -> None:
    assert found(name) is not None


@pytest.mark.parametrize(("file", "names"), re.findall(r"`([\w./]+\.py)` \((`\w+`(?:, `\w+`)*)[,):; ]", TABLE))
def test_each_name_is_in_its_file(file: str, names: str) -> None:
    path = found(file)
    assert path is not None
    text = path.read_text()
    assert [name for name in re.findall(r"\w+", names) if name not in text] == []
