"""Decide which of a job's checkpoints are kept: the latest k, the best k by a metric, each n-th; always at least one.

If several learners store checkpoints of their own, each learner's are counted separately: otherwise a learner that
saves more often would displace the others' checkpoints. Counting steps instead would fail for a folder that is
rewritten without a step. A learner's checkpoint is scored by its own metric; if it has none, by the metric of another
learner at the same step, so that checkpoints of one step are kept together. A checkpoint that learners saved in parts
counts once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from updraft.manifest import Manifest


@dataclass(frozen=True)
class Kept:
    """One complete checkpoint, with the facts that retention needs."""

    name: str
    step: int  # 0 if the program gave none
    attempt: int
    created_at: datetime
    metrics: Mapping[str, float]
    learner: int = 1
    order: int = 0  # its position among all checkpoints that the learner ever completed, from 1; 0: unknown

    @property
    def age(self) -> tuple[int, int, datetime]:
        """Sort older before newer, in the order in which checkpoints to resume from are chosen; names do not count."""
        return (self.step, self.attempt, self.created_at)


def keep_of(manifest: Manifest) -> dict[str, Any] | None:
    """Return the arguments of `retain` for a manifest; None if it has no `checkpoints`, so that all are kept."""
    asked = manifest.checkpoints
    if asked is None:
        return None
    keep = asked.keep
    return {
        "latest": keep.latest,
        "best": keep.best,
        "metric": asked.metric,
        "mode": asked.mode,
        "every_nth": keep.every_nth,
    }


def retain(
    checkpoints: Sequence[Kept],
    *,
    latest: int,
    best: int,
    metric: str | None,
    mode: str = "max",
    every_nth: int | None = None,
    protected: Collection[str] = (),
) -> dict[str, str]:
    """Return the name of each checkpoint that may be deleted, with the reason; never a learner's newest one.

    The newest has the highest step; among equal steps the attempt and then the time decide, so that a folder without
    a step that is written again and again keeps its latest version. `latest` and `best` count checkpoints; `mode` is
    `max` or `min`. One without the metric, or with NaN, is never best; of equally good ones the newer is better.
    `every_nth` keeps those whose `order` it divides, for ever. `protected` are names that stay in any case, such as the
    one that the running attempt went on from.
    """
    why = _why(latest, best, metric, every_nth)
    let_go: dict[str, str] = {}
    for learner in sorted({c.learner for c in checkpoints}):
        ordered = sorted((c for c in checkpoints if c.learner == learner), key=lambda c: c.age)
        keep = {c.name for c in ordered[-max(1, latest) :]} | set(protected)
        if metric is not None and best > 0:
            scored = [(_score(c, checkpoints, metric), c) for c in reversed(ordered)]
            known = [(value, c) for value, c in scored if value is not None]
            known.sort(key=lambda pair: -pair[0] if mode == "max" else pair[0])  # stable: the newer one stays first
            keep |= {c.name for _, c in known[:best]}
        if every_nth:
            keep |= {c.name for c in ordered if c.order and c.order % every_nth == 0}
        let_go |= {c.name: why for c in ordered if c.name not in keep}
    return let_go


def _score(checkpoint: Kept, others: Sequence[Kept], metric: str) -> float | None:
    """Return the checkpoint's metric, or the lowest learner's at the same step of the same attempt; None without a
    metric, or for NaN."""
    value = checkpoint.metrics.get(metric)
    if value is None and checkpoint.step:
        beside = [
            c for c in others if (c.step, c.attempt) == (checkpoint.step, checkpoint.attempt) and metric in c.metrics
        ]
        if beside:
            value = min(beside, key=lambda c: (c.learner, c.name)).metrics[metric]
    return None if value is None or math.isnan(value) else float(value)


def _why(latest: int, best: int, metric: str | None, every_nth: int | None) -> str:
    parts = [f"among the latest {max(1, latest)}"]
    if metric and best:
        parts.append(f"the best {best} by {metric}")
    if every_nth:
        parts.append(f"each {every_nth}th")
    return f"not {' nor '.join(parts)}"
