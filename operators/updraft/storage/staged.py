"""Define the result of staging a source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Staged:
    """A source as a tree of the content store; its digest changes exactly when the content changes."""

    tree_sha256: str
    files: int
    bytes: int
    provenance: Mapping[str, Any] = field(default_factory=dict)  # source, endpoint, commit, fetched and kept files, …
