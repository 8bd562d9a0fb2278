"""The key of a record that keeps a second run of a task from doing again what the first one did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class IdempotencyKey(Generic[T]):
    """One kind of idempotency record of a job.

    Args:
        name: The record's name; a job has at most one record of a name.
        kind: The type of what the record keeps: a frozen dataclass, or a plain JSON type.
    """

    name: str
    kind: type[T]
