"""Draw a job's life: one bar for each attempt, its checkpoints, the steps it repeated, and what the platform did.

HTML and CSS, without a script. Positions are shares of the time from the submission to the job's end, or to now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from updraft.api.pages.render import render, span
from updraft.lifecycle.workflow import TRAIN_ROLE
from updraft.schemas import Attempt, Checkpoint, JobDetail

SHOWN_ATTEMPTS = 40
TICKS = 6
TICK_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
MARK_SHARE = 0.5  # per cent of the width: marks that are closer than this are drawn as one
LABEL_SHARE = 9.0  # per cent of the width: a narrower segment gets no label
CAUSES = {
    "done": "done",
    "infrastructure": "lost to infrastructure",
    "program": "failed: its own program",
    "configuration": "cannot run as configured",
    "data": "failed: its data",
    "preempted": "preempted",
    "halted": "halted",
    "cancelled": "cancelled",
    "deadline": "out of time",
}
ASKED = ("halted", "cancelled")  # ended by a user: these are not in the failure catalogue


@dataclass(frozen=True)
class Scale:
    """Times as shares of the picture's width, in per cent."""

    since: datetime
    until: datetime

    @property
    def seconds(self) -> float:
        return max((self.until - self.since).total_seconds(), 1.0)

    def at(self, moment: datetime) -> float:
        share = 100 * (moment - self.since).total_seconds() / self.seconds
        return min(max(share, 0.0), 100.0)

    def place(self, begin: datetime, end: datetime) -> str:
        left = self.at(begin)
        return f"left:{left:.3f}%;width:{max(self.at(end) - left, 0.0):.3f}%"


@dataclass(frozen=True)
class Shape:
    """A box in a lane. `place`: its CSS left edge and width in per cent. `title` is shown under the mouse."""

    place: str
    css: str = ""
    title: str = ""
    text: str = ""


@dataclass(frozen=True)
class Line:
    """The description of an attempt: what it resumed from, its steps, how it ended, and what the platform did then.

    `end` says how long a successful attempt took; `cause`, `label` and `reason` say why another one ended.
    """

    checkpoint: str = ""
    begun: tuple[str, ...] = ()
    end: str = ""
    cause: str = ""
    label: str = ""
    reason: str = ""
    done: str = ""


@dataclass(frozen=True)
class Row:
    """The lane of an attempt, and the description below it."""

    attempt: Attempt
    shapes: tuple[Shape, ...]
    line: Line


def draw(job: JobDetail, attempts: Sequence[Attempt], checkpoints: Sequence[Checkpoint], now: datetime) -> str:
    """Return the picture as HTML, or "" for a job without an attempt."""
    if not attempts:
        return ""
    scale = Scale(job.created_at, job.updated_at if job.ended else max(now, job.updated_at))
    backdrop = (*_grid(scale), *_halts(job, scale))
    drawn = attempts[-SHOWN_ATTEMPTS:]
    rows = []
    for attempt in drawn:
        before = next((a for a in reversed(attempts) if a.role == attempt.role and a.number < attempt.number), None)
        own = [item for item in checkpoints if attempt.role == TRAIN_ROLE and item.attempt == attempt.number]
        rows.append(Row(attempt, (*backdrop, *_bar(attempt, before, scale), *_marks(own, scale)), told(attempt)))
    return render(
        "timeline.html",
        axis=list(_axis(scale)),
        states=list(_states(job, scale)),
        rows=rows,
        left_out=len(attempts) - len(drawn),
        key=list(_key(drawn, checkpoints)),
    )


def told(attempt: Attempt) -> Line:
    """Return an attempt in words."""
    training = attempt.role == TRAIN_ROLE
    checkpoint, begun = "", []
    if attempt.resume is not None and training:
        checkpoint = attempt.resume.checkpoint or ""
        if not checkpoint:
            begun.append("from the beginning")
        if attempt.resume.repeats:
            begun.append(f"{attempt.resume.repeats} steps repeated")
    if attempt.first_step is not None and training:  # an evaluation reports all its values at one step
        begun.append(f"steps {attempt.first_step} to {attempt.last_step}")
    if attempt.revision:
        begun.append(f"revision {attempt.revision} of the manifest")
    line = Line(checkpoint=checkpoint, begun=tuple(begun))
    if attempt.cause is None or attempt.ended_at is None:
        return line if checkpoint or begun else replace(line, end="runs")
    if attempt.cause == "done":
        return replace(line, end=f"done in {span((attempt.ended_at - attempt.started_at).total_seconds())}")
    return replace(
        line,
        cause=CAUSES.get(attempt.cause, attempt.cause),
        label=", ".join(filter(None, (attempt.label, attempt.code))) if attempt.cause not in ASKED else "",
        reason=attempt.reason or "",
        done=attempt.done or "",
    )


def _axis(scale: Scale) -> Iterator[Shape]:
    for moment, label in _ticks(scale):
        yield Shape(f"left:{scale.at(moment):.3f}%", text=label)


def _grid(scale: Scale) -> Iterator[Shape]:
    for moment, _ in _ticks(scale):
        yield Shape(f"left:{scale.at(moment):.3f}%", "tick")


def _ticks(scale: Scale) -> Iterator[tuple[datetime, str]]:
    first = "%H:%M:%S" if scale.seconds < 43_200 else "%Y-%m-%d %H:%M"
    step = next((s for s in TICK_SECONDS if scale.seconds / s <= TICKS), None)
    if step is None:
        step = 86_400 * -(-int(scale.seconds) // (86_400 * TICKS))
    for number in range(int(scale.seconds // step) + 1):
        seconds = number * step
        if 100 * seconds / scale.seconds < 93 or number == 0:  # a later label would have no room
            yield scale.since + timedelta(seconds=seconds), _after(seconds) if number else f"{scale.since:{first}}"


def _after(seconds: int) -> str:
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds % unit == 0:
            return f"+{seconds // unit} {name}"
    return f"+{seconds // 60}:{seconds % 60:02d} min" if seconds >= 60 else f"+{seconds} s"


def _states(job: JobDetail, scale: Scale) -> Iterator[Shape]:
    """Yield the stretches of the job's states; a note inside a state begins no new one."""
    for state, begin, end in _stretches(job, scale.until):
        seconds = (end - begin).total_seconds()
        yield Shape(
            scale.place(begin, end),
            f"stretch s-{state}",
            title=f"{state} for {span(seconds)}, since {begin:%Y-%m-%d %H:%M:%S}",
            text=state if 100 * seconds / scale.seconds >= LABEL_SHARE else "",
        )


def _stretches(job: JobDetail, until: datetime) -> Iterator[tuple[str, datetime, datetime]]:
    changes = [item for item in job.transitions if item.state != item.previous]
    for item, after in zip(changes, [*(c.at for c in changes[1:]), until], strict=True):
        if item is not changes[-1] or not job.ended:
            yield item.state, item.at, after


def _halts(job: JobDetail, scale: Scale) -> Iterator[Shape]:
    for state, begin, end in _stretches(job, scale.until):
        if state == "HALTED":
            yield Shape(scale.place(begin, end), "band", title="halted")


def _bar(attempt: Attempt, before: Attempt | None, scale: Scale) -> Iterator[Shape]:
    begin, end = attempt.started_at, attempt.ended_at or scale.until
    if before is not None and before.ended_at is not None and before.ended_at < begin:
        waited = f"{span((begin - before.ended_at).total_seconds())} from the end of attempt {before.number}"
        yield Shape(scale.place(before.ended_at, begin), "gap", title=waited)
    cause = attempt.cause or "runs"
    title = f"attempt {attempt.number}: {cause}, {span((end - begin).total_seconds())}"
    yield Shape(scale.place(begin, end), f"bar c-{cause}", title=title)
    share = _repeated(attempt)
    if share:
        repeated = attempt.resume.repeats if attempt.resume else 0
        again = scale.place(begin, begin + share * (end - begin))
        yield Shape(again, "again", title=f"about here: {repeated} steps a second time")


def _repeated(attempt: Attempt) -> float:
    """Return the share of the attempt that repeated earlier steps, as its step numbers tell."""
    repeats = attempt.resume.repeats if attempt.resume is not None else None
    if not repeats or attempt.first_step is None or attempt.last_step is None:
        return 0.0
    return min(repeats / max(attempt.last_step - attempt.first_step + 1, 1), 1.0)


def _marks(checkpoints: Iterable[Checkpoint], scale: Scale) -> Iterator[Shape]:
    """Yield a mark for each kept and quarantined checkpoint; of deleted ones that would cover each other, one."""
    last = -MARK_SHARE
    for item in sorted(checkpoints, key=lambda c: (c.state != "deleted", c.created_at or scale.since)):
        left = scale.at(item.created_at or scale.since)
        if item.state == "deleted":
            if left - last < MARK_SHARE:
                continue
            last = left
        title = f"{item.name}, step {item.step}: {item.state}" + (f" ({item.reason})" if item.reason else "")
        yield Shape(f"left:{left:.3f}%", f"mark {item.state}", title=title)


def _key(attempts: Sequence[Attempt], checkpoints: Sequence[Checkpoint]) -> Iterator[tuple[str, str]]:
    """Yield (CSS class, meaning) of each kind of shape in the picture."""
    if any(a.cause is None for a in attempts):
        yield "bar", "runs"
    yield from ((f"bar c-{cause}", CAUSES[cause]) for cause in CAUSES if any(a.cause == cause for a in attempts))
    states = [state for state in ("kept", "deleted", "quarantined") if any(c.state == state for c in checkpoints)]
    yield from ((f"mark {state}", f"checkpoint, {state}") for state in states)
    if any(_repeated(a) for a in attempts):
        yield "again", "steps done a second time"
