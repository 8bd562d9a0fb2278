"""Retention of a job's checkpoints: the latest k, the best k by a metric, never none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Kept:
    """One complete checkpoint, as retention sees it."""

    name: str
    step: int
    metrics: Mapping[str, float]


def retain(
    checkpoints: Sequence[Kept], *, latest: int, best: int, metric: str | None, mode: str = "max"
) -> dict[str, str]:
    """Name and reason of each checkpoint that may be deleted; the newest is never among them.

    `latest` and `best` count checkpoints; `mode` is `max` or `min`. One without the metric, or with NaN, is never best.
    """
    ordered = sorted(checkpoints, key=lambda c: (c.step, c.name))
    keep = {c.name for c in ordered[-max(1, latest) :]}
    if metric is not None and best > 0:
        scored = [(float(c.metrics[metric]), c) for c in ordered if metric in c.metrics]
        scored = [(value, c) for value, c in scored if not math.isnan(value)]
        scored.sort(key=lambda pair: (pair[0], pair[1].step), reverse=mode == "max")
        if mode == "min":
            scored.sort(key=lambda pair: (pair[0], -pair[1].step))
        keep |= {c.name for _, c in scored[:best]}
    why = f"not among the latest {max(1, latest)}" + (f" nor the best {best} by {metric}" if metric and best else "")
    return {c.name: why for c in ordered if c.name not in keep}
