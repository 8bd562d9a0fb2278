"""How long to wait before a part that died is started again.

From the beginning again once a part has been ready for `CALM_SECONDS`. It never gives up: a part whose cause of death
goes away (a full disk, a missing file) comes back by itself.
"""

from __future__ import annotations

from updraft_learner.backoff import Backoff

RESTARTS = Backoff(1.0, 60.0)
CALM_SECONDS = 60.0


def deaths_in_a_row(before: int, ready_for_seconds: float) -> int:
    """Return the count after one more death."""
    return 1 if ready_for_seconds >= CALM_SECONDS else before + 1
