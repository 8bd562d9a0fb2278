"""What the script of the jobs pages does, executed by node in a small DOM (`pages_dom.js`)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DOM = HERE / "pages_dom.js"
SCRIPT = HERE.parents[2] / "operators" / "updraft" / "api" / "pages" / "static" / "pages.js"
NODE = shutil.which("node")
SCENARIOS = re.findall(r"^  async (\w+)\(\) \{$", DOM.read_text(), re.MULTILINE)


@pytest.mark.skipif(NODE is None, reason="node is not on the PATH")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_pages_script(scenario: str) -> None:
    assert NODE is not None
    ran = subprocess.run([NODE, str(DOM), str(SCRIPT), scenario], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) == 8
