"""Reference pages that are made from the source: `make reference` writes them, a test compares them.

api.py              the plugin's routes
cli.py              the command `updraft`
failures.py         the catalogue of failures
frameworks.py       the frameworks and their images
manifest.py         the manifest, and its JSON Schema
public_programs.py  programs of public repositories, with their patches
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from reference import api, cli, failures, frameworks, manifest, public_programs

# File below docs/reference -> what writes it.
PAGES: Mapping[str, Callable[[], str]] = {
    "api.md": api.page,
    "cli.md": cli.page,
    "failures.md": failures.page,
    "frameworks.md": frameworks.page,
    "manifest.md": manifest.page,
    manifest.SCHEMA_FILE: manifest.schema_text,
    "public-programs.md": public_programs.page,
}
