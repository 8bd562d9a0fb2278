"""The failure catalogue: one table from evidence to label, class, action and the text a person reads."""

from __future__ import annotations

from typing import Protocol


class Rule(Protocol):
    """A tenant's row: an entry of the manifest's `failures`."""

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
