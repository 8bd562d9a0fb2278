"""`python scripts/docs/reference`: write every page of docs/reference that is made from the source."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reference import PAGES

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "reference"

if __name__ == "__main__":
    for name, text in PAGES.items():
        (FOLDER / name).write_text(text(), encoding="utf-8")
