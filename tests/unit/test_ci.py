"""What continuous integration runs, so that a green run says something."""

from __future__ import annotations

import os
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
ALWAYS = ["lint", "types", "contracts", "check-rclone", "test", "faults-ci"]
IN_TURN = ["test-containers", "test-cluster", "test-pages", "test-compose-cluster"]


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
    assert 'make "$target"' in text
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)
    assert {*ALWAYS, *IN_TURN} <= set(targets)
    assert f"check-all: {' '.join((*ALWAYS, *IN_TURN))} ##" in makefile
