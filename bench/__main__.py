"""Every published figure is one command: `python bench` runs all, `python bench NAME` one, `python bench report` writes
the page of the last results.

Results go to `bench/results/NAME.json`, and from there into docs/reference/benchmarks.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Kubernetes for figures that need one: the cluster of the tests, with the images of the tests.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "cluster"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from benchmarks.cli import main

sys.exit(main())
