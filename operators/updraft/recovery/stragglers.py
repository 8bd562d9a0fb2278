"""Find the learner that keeps the others waiting: its own part of each step takes much longer than theirs.

Pure. In a training that exchanges gradients, all learners are at the same step, so steps show nothing. What counts is
the time that each learner computes for the same amount of work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType

WINDOW_SECONDS = 30.0
WINDOWS = 3  # in a row
FACTOR = 2.0  # times the median of the others, for the same work
WAIT_FACTOR = 1.5  # times the median of the others, for its own work: else it keeps nobody waiting


@dataclass(frozen=True)
class Pace:
    """What a learner has done since it joined: its work, and the seconds that it computed for that."""

    work: float
    seconds: float


@dataclass(frozen=True)
class StragglerHistory:
    """The learners' paces at the beginning of the present window, and for how many windows each was slow."""

    since_seconds: float | None = None
    paces: Mapping[int, Pace] = field(default_factory=lambda: MappingProxyType({}))
    slow: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))


def compare(
    history: StragglerHistory, paces: Mapping[int, Pace], now_seconds: float
) -> tuple[StragglerHistory, tuple[int, str] | None]:
    """Return the history with these paces in it, and the straggler with the reason, if there is one.

    Start with an empty history whenever learners have joined or left.
    """
    if history.since_seconds is None:
        return StragglerHistory(now_seconds, MappingProxyType(dict(paces))), None
    if now_seconds - history.since_seconds < WINDOW_SECONDS:
        return history, None
    done = {
        n: Pace(pace.work - history.paces[n].work, pace.seconds - history.paces[n].seconds)
        for n, pace in paces.items()
        if n in history.paces and pace.work > history.paces[n].work
    }
    slow: dict[int, int] = {}
    worst: tuple[float, int] | None = None
    for n, own in done.items():
        others = [pace for other, pace in done.items() if other != n]
        if not others:
            continue
        usual, waited = median(pace.seconds / pace.work for pace in others), median(pace.seconds for pace in others)
        if not 0 < FACTOR * usual < own.seconds / own.work or own.seconds <= WAIT_FACTOR * waited:
            continue
        slow[n] = history.slow.get(n, 0) + 1
        if slow[n] >= WINDOWS:
            worst = max(worst or (0.0, 0), (own.seconds / own.work / usual, n))
    found = None
    if worst is not None:
        found = worst[1], f"it needs {worst[0]:.1f} times as long as the others for the same work"
    return StragglerHistory(now_seconds, MappingProxyType(dict(paces)), MappingProxyType(slow)), found
