"""`python -m updraft.manifest FOLDER` writes manifest.md and manifest.schema.json into FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from updraft.manifest.schema import write_reference

if __name__ == "__main__":
    write_reference(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference"))
