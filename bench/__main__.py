"""Every published figure is one command: `python bench` runs all, `python bench NAME` one, `python bench report` writes
the page of the last results.

Results go to `bench/results/NAME.json`, and from there into docs/reference/benchmarks.md.
"""

from __future__ import annotations

import sys

from benchmarks.cli import main

sys.exit(main())
