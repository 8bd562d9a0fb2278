"""How far a job has come, and how much later than usual it ends: pure. Called by `every`.

A job's marks are its steps and its finished tasks. What it takes from a mark to its end when nothing is killed is known
from calm jobs of the same program, so a job that an earlier kill has delayed is not late for a later one.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from faults.witness import Session


@dataclass(frozen=True)
class Timeline:
    """Seconds from a job's submission to its marks and to its end."""

    end: float
    marks: Mapping[str, float] = field(default_factory=dict)


def timeline(submitted_at: float, ended_at: float, sessions: Sequence[Session], tasks: Mapping[str, float]) -> Timeline:
    """Return the seconds from submission to each step and task. A step that was made twice counts at its first time.

    tasks: when each one succeeded, as unix seconds.
    """
    marks = {task: at - submitted_at for task, at in tasks.items()}
    for session in sessions:
        if session.learner == 1:
            for at, step in session.steps:
                name = f"step {step}"
                marks[name] = min(at - submitted_at, marks.get(name, float("inf")))
    return Timeline(ended_at - submitted_at, marks)


def median(timelines: Sequence[Timeline]) -> Timeline:
    """Return the median time of each mark that all timelines have, and of their ends."""
    shared = set.intersection(*(set(each.marks) for each in timelines))
    marks = {name: statistics.median(each.marks[name] for each in timelines) for name in shared}
    return Timeline(statistics.median(each.end for each in timelines), marks)


def expected_end(usual: Timeline, own: Timeline, at: float) -> float:
    """Return when a job that is hit so many seconds after its submission should end: not before its usual end."""
    reached = [usual.marks[name] for name, when in own.marks.items() if when <= at and name in usual.marks]
    return max(usual.end, at + usual.end - max(reached, default=0.0))


def late_seconds(usual: Timeline, own: Timeline, kills: Sequence[float]) -> list[float]:
    """Return how much later the job ends because of each kill: what was expected at the next one, or came true, less
    what was expected at this one."""
    expected = [expected_end(usual, own, at) for at in kills]
    return [after - before for before, after in pairwise([*expected, own.end])]
