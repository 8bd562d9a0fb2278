"""Retention of a job's checkpoints: the latest k, the best k by a metric, never none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Kept:
    """One complete checkpoint, as retention sees it."""

    name: str
    step: int  # 0 where its program gave none
    attempt: int
    created_at: datetime
    metrics: Mapping[str, float]

    @property
    def age(self) -> tuple[int, int, datetime]:
        """Sorts older before newer, as the choice of the checkpoint to go on from does; names say nothing."""
        return (self.step, self.attempt, self.created_at)


def retain(
    checkpoints: Sequence[Kept], *, latest: int, best: int, metric: str | None, mode: str = "max"
) -> dict[str, str]:
    """Name and reason of each checkpoint that may be deleted; the newest is never among them.

    The newest has the highest step; among equal steps the attempt and then the time decide, so that a folder without
    a step that is written again and again keeps its latest version. `latest` and `best` count checkpoints; `mode` is
    `max` or `min`. One without the metric, or with NaN, is never best; of equally good ones the newer is better.
    """
    ordered = sorted(checkpoints, key=lambda c: c.age)
    keep = {c.name for c in ordered[-max(1, latest) :]}
    if metric is not None and best > 0:
        scored = [(float(c.metrics[metric]), c) for c in reversed(ordered) if metric in c.metrics]
        scored = [(value, c) for value, c in scored if not math.isnan(value)]
        scored.sort(key=lambda pair: -pair[0] if mode == "max" else pair[0])  # stable: the newer stays first
        keep |= {c.name for _, c in scored[:best]}
    why = f"not among the latest {max(1, latest)}" + (f" nor the best {best} by {metric}" if metric and best else "")
    return {c.name: why for c in ordered if c.name not in keep}
