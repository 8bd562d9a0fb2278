"""Which frameworks' adapters are tested, and that each has tests."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from updraft.stack.environments import framework_tests
from updraft.stack.layout import Home

REPOSITORY = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("framework_tests", REPOSITORY / "scripts" / "framework_tests.py")
assert SPEC is not None
assert SPEC.loader is not None
framework_script = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(framework_script)


def known() -> list[str]:
    return sorted(framework_tests(Home(root=REPOSITORY / ".updraft", repository=REPOSITORY)))


def test_each_framework_that_is_built_on_demand_has_tests() -> None:
    marked = set()
    for path in (REPOSITORY / "tests" / "learner").glob("test_adapter_*.py"):
        marked |= set(re.findall(r'mark\.framework\(name="(\w+)"\)', path.read_text()))
    assert sorted(marked) == known() == ["huggingface", "jax", "lightgbm", "lightning", "tensorflow", "xgboost"]


def test_every_framework_has_its_turn() -> None:
    names = known()
    runs = [framework_script.chosen(["--turn", str(number)], names) for number in range(700, 700 + len(names))]
    assert sorted(name for run in runs for name in run) == names
    assert framework_script.chosen([], names) == names
    assert framework_script.chosen(["jax"], names) == ["jax"]
    with pytest.raises(SystemExit, match=r"no framework torch; known are huggingface, jax"):
        framework_script.chosen(["torch"], names)
