"""How often many watchers of one process look: each as it likes while they are few, in turn when they are many.

A look at the store costs some milliseconds of a core. A thousand jobs that each look every few seconds would leave the
triggerer no time for what matters, the ends of learners. Used by `attention` and
`updraft.triggers.checkpoints`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Pace:
    """`seconds` between two looks of one watcher: `least_seconds`, or more where all together would look more than
    `most_per_second` times."""

    def __init__(self, least_seconds: float, most_per_second: float) -> None:
        self.least_seconds = least_seconds
        self.most_per_second = most_per_second
        self._watchers = 0

    @contextmanager
    def joined(self) -> Iterator[None]:
        """One watcher more, until it is left."""
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1

    @property
    def seconds(self) -> float:
        return max(self.least_seconds, self._watchers / self.most_per_second)
