"""Small parts of sentences for people."""

from __future__ import annotations


def counted(number: int, noun: str = "learner") -> str:
    """Return `1 learner`, `2 learners`."""
    return f"{number} {noun}{'s' * (number != 1)}"
