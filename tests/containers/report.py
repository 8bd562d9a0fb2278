"""The table of image sizes and build times in docs/reference/images.md, from the images.json beside it."""

from __future__ import annotations

import json
from pathlib import Path

from containers.build import RESULTS
from containers.places import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "images.md"
BEGIN, END = "<!-- sizes: begin (make images-record) -->", "<!-- sizes: end -->"


def table(results: Path = RESULTS) -> str:
    """Markdown; megabytes are millions of bytes."""
    lines = ["| image | size | above its base | layers above it | build | measured |", "|---|---|---|---|---|---|"]
    for entry in json.loads(results.read_text()):
        took = "" if entry["seconds"] is None else f"{entry['seconds']:.0f} s"
        lines.append(
            f"| `{entry['name']}` | {entry['bytes'] / 1e6:.0f} MB | {entry['own_bytes'] / 1e6:.0f} MB | "
            f"{entry['layers']} | {took} | {entry['at'][:10]}, on `{entry['base']}` |"
        )
    return "\n".join(lines)


def page(text: str, results: Path = RESULTS) -> str:
    """`text` with the current table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(results)}\n{END}{after}"


def write() -> None:
    if PAGE.exists():
        PAGE.write_text(page(PAGE.read_text()))
