"""What staging a source gives, and the limit that every source has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from updraft.exceptions import LimitError
from updraft_learner.trees import megabytes


@dataclass(frozen=True)
class Staged:
    """A source as a tree of the content store, whose digest changes exactly when the content does."""

    tree_sha256: str
    files: int
    bytes: int
    provenance: Mapping[str, Any] = field(default_factory=dict)  # source, endpoint, commit, fetched and kept files, …


def check_limit(source: str, size_bytes: int, limit_bytes: int) -> None:
    """Raises LimitError."""
    if size_bytes > limit_bytes:
        raise LimitError(
            f"{source}: has {megabytes(size_bytes)}, more than the limit of {megabytes(limit_bytes)}; "
            "use less data or ask for a higher limit"
        )
