"""Whether a running attempt still gets anywhere: stalled, not a number, diverging, a straggler.

Pure; the controller's watch feeds it what it reads of the learners, and tells people what it finds. It is judged by the
job's own history, on one process's monotonic clock: a status that is old proves nothing about now.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from types import MappingProxyType
from typing import Literal

Kind = Literal["stalled", "nan", "diverging", "straggler", "resumed"]
OnNoProgress = Literal["warn", "restart", "stop"]

QUIET_PHASES = frozenset({"storing", "done"})  # no steps are expected
STALL_FACTOR = 20.0  # times the median step interval
STALL_LEAST_SECONDS = 300.0
PAUSE_FACTOR = 1.5  # times the longest pause that the job has come out of by itself
INTERVALS_KEPT = 50
INTERVALS_NEEDED = 3  # fewer say nothing about a job's pace
LOSS_FACTOR = 10.0
LOSS_WEIGHT = 0.1  # of a new value in the smoothed loss
LOSS_WARM_UP = 5  # values before the smoothed loss counts as the best
LOSS_OBSERVATIONS = 20
STRAGGLER_STEPS = 5
STRAGGLER_SHARE = 0.1
STRAGGLER_SECONDS = 120.0
FRESH_SECONDS = 60.0  # of the others' statuses that a straggler is compared with


@dataclass(frozen=True)
class ProgressLimits:
    """What the manifest says about progress."""

    no_progress_seconds: float | None = None
    on_no_progress: OnNoProgress = "warn"


@dataclass(frozen=True)
class ProgressReport:
    """One learner's status as it was read."""

    learner: int
    step: int | None  # newest step that the program reported; None: none yet
    phase: str
    nan: bool  # the newest loss-like metric is not a number
    at_seconds: float  # when this status was first read
    log_lines: int = 0  # of this learner, recorded so far
    loss: float | None = None  # newest value of the loss-like metric


@dataclass(frozen=True)
class ProgressFinding:
    """Something a person should know, told once per episode; `resumed` ends one. `act`: do what the manifest says."""

    kind: Kind
    learner: int
    reason: str
    act: bool = False


@dataclass(frozen=True)
class Track:
    """One learner's history in this attempt."""

    step: int | None
    step_at: float  # when the step was first seen
    log_lines: int
    log_at: float
    seen_at: float
    intervals: tuple[float, ...] = ()  # seconds per step
    longest_pause: float = 0.0
    loss: float | None = None  # smoothed
    loss_step: int | None = None
    losses: int = 0
    best_loss: float = math.inf
    above: int = 0  # observations in a row far above the best
    behind_since: float | None = None
    open: frozenset[Kind] = frozenset()  # episodes that were told


@dataclass(frozen=True)
class ProgressHistory:
    """All learners' histories in one attempt. A new attempt begins with an empty one."""

    tracks: Mapping[int, Track] = field(default_factory=lambda: MappingProxyType({}))


def observe(
    watch: ProgressHistory, seen: ProgressReport, now_seconds: float, limits: ProgressLimits
) -> tuple[ProgressHistory, ProgressFinding | None]:
    """Return the history with this status in it, and what it shows, one finding at a time.

    Called for each learner at each look, with the newest status even if it is an old one.
    """
    old = watch.tracks.get(seen.learner)
    track = _begun(seen) if old is None else _followed(old, seen)
    others = [t for n, t in watch.tracks.items() if n != seen.learner]
    track = replace(track, behind_since=_behind_since(track, others))
    state = _state(track, seen, now_seconds, limits)
    finding: ProgressFinding | None = None
    for kind, reason in state.items():
        if reason is not None and kind not in track.open:
            act = kind == "stalled" and limits.on_no_progress != "warn"
            finding = ProgressFinding(kind, seen.learner, f"learner {seen.learner} {reason}", act)
            track = replace(track, open=track.open | {kind})
            break
        if reason is None and kind in track.open:
            finding = ProgressFinding("resumed", seen.learner, f"learner {seen.learner} {_over(kind, track, seen)}")
            track = replace(track, open=track.open - {kind})
            break
    return ProgressHistory(MappingProxyType({**watch.tracks, seen.learner: track})), finding


def threshold_seconds(track: Track, limits: ProgressLimits) -> float | None:
    """Return the longest time without a new step that counts as normal; None while the history is too short to say."""
    if limits.no_progress_seconds is not None:
        return limits.no_progress_seconds
    if len(track.intervals) < INTERVALS_NEEDED:
        return None
    # A job that evaluates for ten minutes at each epoch's end pauses so again.
    return max(STALL_FACTOR * median(track.intervals), STALL_LEAST_SECONDS, PAUSE_FACTOR * track.longest_pause)


def _begun(seen: ProgressReport) -> Track:
    track = Track(seen.step, seen.at_seconds, seen.log_lines, seen.at_seconds, seen.at_seconds)
    return _with_loss(track, seen)


def _followed(old: Track, seen: ProgressReport) -> Track:
    track = old
    at = max(seen.at_seconds, old.seen_at)
    if seen.log_lines != old.log_lines:
        track = replace(track, log_lines=seen.log_lines, log_at=at)
    if seen.step is not None and seen.step != old.step:
        pause = at - old.step_at
        if old.step is not None and seen.step > old.step:
            intervals = (*old.intervals, pause / (seen.step - old.step))[-INTERVALS_KEPT:]
            track = replace(track, intervals=intervals, longest_pause=max(old.longest_pause, pause))
        track = replace(track, step=seen.step, step_at=at)
    if seen.phase in QUIET_PHASES:  # the time that storing takes is no pause of the program
        track = replace(track, step_at=at, log_at=at)
    fresh = seen.step != old.loss_step if seen.step is not None else seen.at_seconds > old.seen_at
    track = replace(track, seen_at=at)
    return _with_loss(track, seen) if fresh else track


def _with_loss(track: Track, seen: ProgressReport) -> Track:
    """Return the smoothed loss with a new value in it."""
    value = seen.loss
    if value is None or not math.isfinite(value):
        return track
    smoothed = value if track.loss is None else (1 - LOSS_WEIGHT) * track.loss + LOSS_WEIGHT * value
    count = track.losses + 1
    best = min(track.best_loss, smoothed) if count >= LOSS_WARM_UP else track.best_loss
    far = best < math.inf and best > 0 and value > LOSS_FACTOR * best
    above = track.above + 1 if far else 0
    return replace(track, loss=smoothed, loss_step=seen.step, losses=count, best_loss=best, above=above)


def _behind_since(track: Track, others: list[Track]) -> float | None:
    """Return since when the learner is far behind the others, by the statuses that are as fresh as its own."""
    steps = [t.step for t in others if t.step is not None and abs(t.seen_at - track.seen_at) <= FRESH_SECONDS]
    if track.step is None or not steps:
        return None
    middle = median(steps)
    if middle - track.step <= max(STRAGGLER_STEPS, STRAGGLER_SHARE * middle):
        return None
    return track.seen_at if track.behind_since is None else track.behind_since


def _state(track: Track, seen: ProgressReport, now_seconds: float, limits: ProgressLimits) -> dict[Kind, str | None]:
    """Return, for each kind of finding, its reason while it holds, or None."""
    lag = None if track.behind_since is None else track.seen_at - track.behind_since
    straggles = lag is not None and lag >= STRAGGLER_SECONDS
    diverges = track.above >= LOSS_OBSERVATIONS
    return {
        "stalled": _stalled(track, seen, now_seconds, limits),
        "nan": "reports a loss that is not a number" if seen.nan else None,
        "diverging": f"reports a loss of {seen.loss:g}, and its best was {track.best_loss:g}"
        if diverges and seen.loss is not None
        else None,
        "straggler": f"is at step {track.step}, far behind the others, for {lag:.0f} s" if straggles else None,
    }


def _stalled(track: Track, seen: ProgressReport, now_seconds: float, limits: ProgressLimits) -> str | None:
    if seen.phase in QUIET_PHASES:
        return None
    if now_seconds - seen.at_seconds > FRESH_SECONDS and "stalled" not in track.open:
        return None  # the status is old: the witness is silent, the program may be well
    if track.step is None:
        limit = limits.no_progress_seconds
        quiet = track.seen_at - max(track.log_at, track.step_at)
        if limit is None or quiet < limit:
            return None
        return f"has reported no step and written no log line for {quiet:.0f} s"
    limit, quiet = threshold_seconds(track, limits), track.seen_at - track.step_at
    if limit is None or quiet < limit:
        return None
    if limits.no_progress_seconds is not None:
        return f"is at step {track.step} for {quiet:.0f} s; budget.no_progress is {limit:.0f} s"
    usual = median(track.intervals)
    return f"is at step {track.step} for {quiet:.0f} s, where a step usually takes {usual:.3g} s"


def _over(kind: Kind, track: Track, seen: ProgressReport) -> str:
    if kind == "stalled":
        return f"goes on: step {track.step}" if track.step is not None else "goes on"
    if kind == "straggler":
        return f"has caught up: step {track.step}"
    return f"reports a loss of {seen.loss:g} again" if seen.loss is not None else "reports a loss again"
