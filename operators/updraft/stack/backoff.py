"""Decide how long to wait before a part that died is restarted.

The wait starts from its first value again once a part has been ready for `CALM_SECONDS`. Restarts never end: if the
cause (a full disk, a missing file) goes away, the part comes back by itself.
"""

from __future__ import annotations

from updraft_learner.backoff import Backoff

RESTARTS = Backoff(1.0, 60.0)
CALM_SECONDS = 60.0


def deaths_in_a_row(before: int, ready_for_seconds: float) -> int:
    """Return the count after one more death."""
    return 1 if ready_for_seconds >= CALM_SECONDS else before + 1
