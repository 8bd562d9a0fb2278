"""How often many watchers of one process look: each as it likes while they are few, in turn when they are many.

A look at the store costs some milliseconds of a core. A thousand jobs that each look every few seconds, or all at once
because their triggerer was started again, would leave it no time for what matters, the ends of learners. Used by
`attention` and `updraft.triggers.checkpoints`, each from one thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class RateLimiter:
    """Turns that are `1 / most_per_second` apart, and none sooner than `least_seconds` after it was asked for."""

    def __init__(
        self, least_seconds: float, most_per_second: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._least_seconds = least_seconds
        self._apart_seconds = 1 / most_per_second
        self._clock = clock
        self._last = -math.inf

    def turn_seconds(self) -> float:
        """Return the seconds until the caller's next look, which is no other caller's turn. Call it once before each
        look."""
        now = self._clock()
        self._last = max(now + self._least_seconds, self._last + self._apart_seconds)
        return self._last - now
