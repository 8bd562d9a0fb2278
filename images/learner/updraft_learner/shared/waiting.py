"""Waiting for a counter in shared memory: no lock, so that nobody who dies holds one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

YIELDS = 20
SHORTEST_SECONDS, LONGEST_SECONDS = 0.00002, 0.001


def wait_until(ready: Callable[[], object]) -> None:
    """Return when `ready()` is true; ask often at first, then each millisecond."""
    for _ in range(YIELDS):
        if ready():
            return
        os.sched_yield()
    pause = SHORTEST_SECONDS
    while not ready():
        time.sleep(pause)
        pause = min(LONGEST_SECONDS, pause * 1.5)
