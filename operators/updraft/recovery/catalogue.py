"""Hold the failure catalogue: one table from evidence to label, class, action, and the text that a user reads.

`updraft.recovery.outcome.judge` searches it; docs/reference/failures.md is generated from it. The rows of a tenant,
from the manifest's `failures`, are searched first for how a program ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from updraft.recovery.failure_rule import FailureRule, Precedence, Where
from updraft.recovery.rows_cluster import (
    CLUSTER_ROWS,
    CONDITION_ROWS,
    CONTROLLER_ROWS,
    GANG_ROWS,
    POD_ROWS,
    REFUSED_ROWS,
    STAGE_ROWS,
    WAITING_ROWS,
)
from updraft.recovery.rows_program import CODE_ROWS, CONTAINER_ROWS, EXIT_ROWS, LOG_ROWS, PROGRAM_ROWS

__all__ = [
    "CATALOGUE",
    "CODE_ROWS",
    "CONDITION_ROWS",
    "CONTAINER_ROWS",
    "CONTROLLER_ROWS",
    "EXIT_ROWS",
    "GANG_ROWS",
    "LOG_ROWS",
    "POD_ROWS",
    "REFUSED_ROWS",
    "STAGE_ROWS",
    "WAITING_ROWS",
    "FailureRule",
    "Precedence",
    "TenantRule",
    "Where",
    "row_of",
]

CATALOGUE: tuple[FailureRule, ...] = (*CLUSTER_ROWS, *PROGRAM_ROWS)


class TenantRule(Protocol):
    """A tenant's row: an entry of the manifest's `failures`. It fits by exit code, by plain text in one of the
    program's last lines, or, if both are given, by both."""

    @property
    def exit_code(self) -> int | None: ...
    @property
    def contains(self) -> str | None: ...
    @property
    def cause(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def text(self) -> str: ...


_FIRST: Mapping[str, FailureRule] = MappingProxyType({row.label: row for row in reversed(CATALOGUE)})


def row_of(label: str) -> FailureRule | None:
    """Return the row of a label, for its text; None for a label that is not ours, such as a tenant's."""
    return _FIRST.get(label)
