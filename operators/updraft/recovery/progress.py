"""Judge whether a running attempt makes progress: stalled, NaN loss, diverging loss, straggler.

Pure. The controller passes the learners' statuses in and reports what this finds. A learner is compared with the job's
own history, on the monotonic clock of one process. An old status proves nothing about the present.
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

QUIET_PHASES = frozenset({"storing", "done"})  # phases in which no steps are expected
STALL_FACTOR = 20.0  # times the median interval between steps
STALL_LEAST_SECONDS = 300.0
PAUSE_FACTOR = 1.5  # times the longest pause after which the learner went on by itself
INTERVALS_KEPT = 50
INTERVALS_NEEDED = 3  # fewer intervals say nothing about the learner's pace
LOSS_FACTOR = 10.0
LOSS_WEIGHT = 0.1  # weight of a new value in the smoothed loss
LOSS_WARM_UP = 5  # number of values before the smoothed loss can count as the best
LOSS_OBSERVATIONS = 20
STRAGGLER_STEPS = 5
STRAGGLER_SHARE = 0.1
STRAGGLER_SECONDS = 120.0
FRESH_SECONDS = 60.0  # greatest difference in age between a straggler's status and those it is compared with


@dataclass(frozen=True)
class ProgressLimits:
    """The limits that the manifest sets for progress."""

    no_progress_seconds: float | None = None
    on_no_progress: OnNoProgress = "warn"


@dataclass(frozen=True)
class ProgressReport:
    """One learner's status, as read at one look."""

    learner: int
    step: int | None  # newest step that the program reported; None: no step yet
    phase: str
    nan: bool  # the newest loss-like metric is not a number
    at_seconds: float  # when this status was first read
    log_lines: int = 0  # lines of this learner's log recorded so far
    loss: float | None = None  # newest value of the loss-like metric


@dataclass(frozen=True)
class ProgressFinding:
    """A finding for the user, reported once per episode; `resumed` ends an episode. `act`: whether to end the
    attempt."""

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
    above: int = 0  # consecutive observations far above the best loss
    behind_since: float | None = None
    open: frozenset[Kind] = frozenset()  # episodes that were reported and have not ended


@dataclass(frozen=True)
class ProgressHistory:
    """The histories of all learners in one attempt. A new attempt starts with an empty one."""

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
    # A job that evaluated for ten minutes at the end of one epoch will do so again.
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
    if seen.phase in QUIET_PHASES:  # storing takes time, but is not a pause of the program
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
        return None  # the status is old: the sidecar is silent, but the program may be well
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
