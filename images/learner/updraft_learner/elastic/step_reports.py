"""Report to the platform, once a second, how far the training is and how fast this learner does its part of it."""

from __future__ import annotations

import time
from collections.abc import Callable

from updraft_learner import metrics

EVERY_SECONDS = 1.0


class StepReports:
    """The reports of one learner. Outside the platform they go nowhere.

    A learner's own time is that from the beginning of a step to its gradients, with the wait for its samples: without
    the wait for the other learners, and without what the program does between two steps.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = self._work = self._seconds = 0.0
        self._next = clock() + EVERY_SECONDS

    def begin(self) -> None:
        """Begin this learner's part of a step."""
        self._began = self._clock()

    def computed(self, work: float) -> None:
        """End it.

        Args:
            work: How much it was, in a unit that all learners share.
        """
        self._work += work
        self._seconds += self._clock() - self._began

    def committed(self, step: int) -> None:
        """Report, if it is time to. `step`: how many steps of the training are committed."""
        if (now := self._clock()) < self._next:
            return
        self._next = now + EVERY_SECONDS
        metrics.append({"training": {"step": step, "work": round(self._work, 6), "seconds": round(self._seconds, 6)}})
