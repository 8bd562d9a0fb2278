"""`python -m updraft.recovery FOLDER` writes failures.md into FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from updraft.recovery.reference import write_reference

if __name__ == "__main__":
    write_reference(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference"))
