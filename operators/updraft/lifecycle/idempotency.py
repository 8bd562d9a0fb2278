"""Define the key of an idempotency record: a task that runs twice finds by it what its first run did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class IdempotencyKey(Generic[T]):
    """The key of one kind of idempotency record.

    Args:
        name: The record's name; a job has at most one record of each name.
        kind: The type of the record's value: a frozen dataclass or a plain JSON type.
    """

    name: str
    kind: type[T]
