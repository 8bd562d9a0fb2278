"""Count what a simulation shows: completion times, drops, use of the devices, jobs that wait."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from updraft.simulation.engine import Run


@dataclass(frozen=True)
class Outcome:
    """The figures of one run.

    Args:
        completed, dropped: Jobs.
        completion: Seconds from arrival to end, sorted.
        slowdowns: The same against the time that each job trains alone at its fixed size, sorted.
        used: The part of the device-seconds until the last end that jobs held.
        waiting: Jobs that wait, on average over that time.
        resizes: In all.
        ended: Seconds until the last end.
    """

    completed: int
    dropped: int
    completion: tuple[float, ...]
    slowdowns: tuple[float, ...]
    used: float
    waiting: float
    resizes: int
    ended: float

    @property
    def mean(self) -> float:
        """Return the mean completion time in seconds; nan if no job is complete."""
        return statistics.fmean(self.completion) if self.completion else float("nan")

    @classmethod
    def of(cls, run: Run) -> Outcome:
        """Count a run."""
        done = [course for course in run.courses if course.ended is not None]
        times = [(course.ended or 0.0) - course.job.arrives for course in done]
        slow = [took / course.job.seconds_alone() for took, course in zip(times, done, strict=True) if course.job.work]
        ended = max((course.ended or 0.0 for course in done), default=run.ended)
        used, waiting = _averages(run.usage, ended)
        return cls(
            completed=len(done),
            dropped=sum(course.dropped for course in run.courses),
            completion=tuple(sorted(times)),
            slowdowns=tuple(sorted(slow)),
            used=used / run.devices,
            waiting=waiting,
            resizes=sum(course.resizes for course in run.courses),
            ended=ended,
        )


def percentile(ordered: Sequence[float], part: float) -> float:
    """Return the value below which this part of sorted values lies; nan if there is none."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def _averages(usage: Sequence[tuple[float, int, int]], ended: float) -> tuple[float, float]:
    """Return the devices in use and the jobs that wait, on average from the first event until `ended`."""
    used = waiting = 0.0
    for (start, devices, jobs), end in zip(usage, [*(each[0] for each in usage[1:]), ended], strict=True):
        span = max(0.0, min(end, ended) - start)
        used += devices * span
        waiting += jobs * span
    whole = ended - usage[0][0] if usage else 0.0
    return (used / whole, waiting / whole) if whole > 0 else (0.0, 0.0)
