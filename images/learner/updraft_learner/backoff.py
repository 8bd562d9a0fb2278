"""Compute how long to wait before something that failed is tried again. The platform uses this too."""

from __future__ import annotations

import random
from dataclasses import dataclass

MOST_DOUBLINGS = 60  # far beyond every limit, and still small enough for a float


@dataclass(frozen=True)
class Backoff:
    """Pauses that double with each consecutive failure, from `first_seconds` up to `limit_seconds`.

    Example:
        [Backoff(1.0, 60.0).seconds(failures) for failures in (0, 1, 2, 3, 9)]  # [0.0, 1.0, 2.0, 4.0, 60.0]
    """

    first_seconds: float
    limit_seconds: float

    def seconds(self, failures: int) -> float:
        """Return the pause after this many consecutive failures; 0.0 after none."""
        if failures < 1:
            return 0.0
        return float(min(self.limit_seconds, self.first_seconds * 2 ** min(failures - 1, MOST_DOUBLINGS)))

    def jittered_seconds(self, failures: int) -> float:
        """Return half of that pause to all of it, at random, so that many callers do not try at the same moment."""
        return self.seconds(failures) * random.uniform(0.5, 1.0)
