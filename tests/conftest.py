"""What all tests share: where the learner environments are that `make test` prepares, and which long tests take turns.

`--turn N` (CI: the number of commits) runs one third of the tests marked `turn`; without it all run.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import pytest

with suppress(ImportError):  # not in every environment of a learner
    from hypothesis import settings

    # A test is never timed: these machines are shared, and an example that took long says nothing.
    settings.register_profile("updraft", deadline=None)
    settings.load_profile("updraft")

REPOSITORY = Path(__file__).parents[1]
TURNS = 3
HOME = Path(os.environ.get("UPDRAFT_HOME") or REPOSITORY / ".updraft")


def _python(folder: Path) -> str | None:
    found = folder / "bin" / "python"
    return str(found) if found.exists() else None


def _image(name: str) -> Path:
    return HOME / "images" / re.sub(r"[^A-Za-z0-9]+", "-", name)


# Tests that need one of these say so and are skipped without it; `make test` builds all of them first.
for variable, python in {
    "UPDRAFT_TEST_TORCH_PYTHON": _python(_image("updraft/learner-pytorch:2.15")),
    "UPDRAFT_TEST_SKLEARN_PYTHON": _python(_image("updraft/learner-sklearn:1")),
    "UPDRAFT_TEST_MLFLOW_PYTHON": _python(HOME / "envs" / "mlflow"),
}.items():
    if python is not None:
        os.environ.setdefault(variable, python)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--turn", type=int, metavar="N", help="of the tests marked `turn`, run those of turn N % 3 only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    number: int | None = config.getoption("--turn")
    if number is not None:
        left = [item for item in items if (turn := turn_of(item)) is not None and turn != number % TURNS]
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=left)


def turn_of(item: pytest.Item) -> int | None:
    """Return the turn of a test, 0 to TURNS - 1; None for a test that always runs."""
    mark = item.get_closest_marker("turn")
    if mark is None:
        return None
    (number,) = mark.args
    if number not in range(TURNS):
        raise pytest.UsageError(f"{item.nodeid}: turn({number!r}) must be 0 to {TURNS - 1}")
    return int(number)
