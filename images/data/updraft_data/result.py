"""Define the result of a suite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class ValidationResult:
    """The result of a suite. `success`: every expectation of severity critical (the default) was evaluated and met."""

    success: bool
    evaluated: int
    failed: tuple[str, ...] = ()  # one readable sentence per unmet expectation
    warnings: tuple[str, ...] = ()  # the same for expectations of severity warning or info
    statistics: Mapping[str, Any] = field(default_factory=dict)  # rows, columns, files, format, expectations
    duration_seconds: float = 0.0
    profile: Mapping[str, Any] | None = None  # `drift.Profile` of the data, as JSON

    def to_json(self) -> dict[str, Any]:
        """Return the result as the ledger keeps it."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ValidationResult:
        """Return the result that `to_json` made `document` of."""
        return cls(**{**document, "failed": tuple(document["failed"]), "warnings": tuple(document["warnings"])})
