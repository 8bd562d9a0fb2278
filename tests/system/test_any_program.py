"""A program whose packages are not in its image runs with those that its manifest names, as
docs/howto/dependencies.md says."""

from __future__ import annotations

from pathlib import Path

import pytest
from learner.package_index import package_index, wheel
from system_helpers import Stack, pretty

pytestmark = [pytest.mark.system, pytest.mark.turn(1), pytest.mark.timeout(900)]


def test_packages_are_built_and_imported(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("tinya\n")
    (tmp_path / "train.py").write_text("import tinya\nprint('has', tinya.VERSION)\n")
    with package_index(wheel("tinya", "1.0")) as index:
        manifest = {
            "name": "packages",
            "framework": {"name": "sklearn"},
            "code": ".",
            "command": "python train.py && tinya-run",
            "resources": {"learners": 1, "cpus": 0.5, "memory": "512MiB"},
            "environment": {"requirements": "requirements.txt", "index": {"url": index}},
        }
        detail = stack.end(stack.submit(manifest, base=tmp_path))
    assert detail.state == "COMPLETED", pretty(detail)
    assert {learner.role for learner in detail.learners} == {"build", "train"}
