"""What continuous integration runs, so that a green run says something."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import conftest
import pytest

REPOSITORY = Path(__file__).parents[2]
ALWAYS = ["lint", "types", "contracts", "check-rclone", "test", "test-frameworks", "faults-ci"]
IN_TURN = ["test-containers", "test-cluster", "test-pages", "test-compose-cluster", "test-story"]
ELSEWHERE = ["test-public", "test-large"]  # GitHub, and much disk


def test_each_check_is_run_and_is_a_target_of_the_makefile() -> None:
    script = REPOSITORY / ".ci" / "run"
    text = script.read_text()
    assert os.access(script, os.X_OK)
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in text
    found = re.search(r"^for target in (.*); do$", text, re.MULTILINE)
    assert found is not None
    assert found[1].split() == [*ALWAYS, '"$turn"']
    assert f"in_turn=({' '.join(IN_TURN)})" in text
    assert 'make "$target" "${arguments[@]}"' in text
    for target in ("test", "test-frameworks"):
        assert f'[ "$target" = {target} ]' in text
    assert 'then arguments=("ARGS=--turn $commits")' in text
    assert 'stories=("test_story and not killed" "test_story and killed" test_shared)' in text
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)
    assert {*ALWAYS, *IN_TURN} <= set(targets)
    assert f"check-all: {' '.join((*ALWAYS, *IN_TURN, *ELSEWHERE))} ##" in makefile


def chosen(number: int | None, turns: dict[str, int | None]) -> set[str]:
    """Names of the tests that run with `--turn number`."""

    def item(name: str, turn: int | None) -> Any:
        mark = None if turn is None else SimpleNamespace(args=(turn,))
        return SimpleNamespace(nodeid=name, get_closest_marker=lambda _: mark)

    items = [item(name, turn) for name, turn in turns.items()]
    everything, deselected = list(items), []
    hook = SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items))
    conftest.pytest_collection_modifyitems(SimpleNamespace(getoption=lambda _: number, hook=hook), items)  # type: ignore[arg-type]
    assert len(items) + len(deselected) == len(everything)
    return {found.nodeid for found in items}


@pytest.mark.parametrize("commits", [0, 541])
def test_three_commits_after_each_other_run_every_long_test_once(commits: int) -> None:
    turns: dict[str, int | None] = {"always": None, "a": 0, "b": 1, "c": 2, "d": 2}
    runs = [chosen(number, turns) - {"always"} for number in range(commits, commits + 3)]
    assert sorted(name for run in runs for name in run) == ["a", "b", "c", "d"]
    assert all("always" in chosen(number, turns) for number in range(3))
    assert chosen(None, turns) == set(turns)


def test_a_turn_that_never_comes_is_an_error() -> None:
    with pytest.raises(pytest.UsageError, match=r"turn\(3\) must be 0 to 2"):
        chosen(0, {"a": 3})
