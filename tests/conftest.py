"""What all tests share: where the learner environments are that `make test` prepares."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

with suppress(ImportError):  # not in every environment of a learner
    from hypothesis import settings

    # A test is never timed: these machines are shared, and an example that took long says nothing.
    settings.register_profile("updraft", deadline=None)
    settings.load_profile("updraft")

REPOSITORY = Path(__file__).parents[1]
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
