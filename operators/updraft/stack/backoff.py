"""How long to wait before a part that died is started again.

1, 2, 4 ... 60 s; from the beginning again once a part has been ready for `CALM_SECONDS`. It never gives up: a part
whose cause of death goes away (a full disk, a missing file) comes back by itself.
"""

from __future__ import annotations

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 60.0
CALM_SECONDS = 60.0


def delay_seconds(deaths_in_a_row: int) -> float:
    """`deaths_in_a_row` counts from 1."""
    return float(min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** min(max(deaths_in_a_row, 1) - 1, 10)))


def deaths_in_a_row(before: int, ready_for_seconds: float) -> int:
    """The count after one more death."""
    return 1 if ready_for_seconds >= CALM_SECONDS else before + 1
