"""`python bench/faults ...`: see `faults.cli`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.cli import main

if __name__ == "__main__":
    sys.exit(main())
