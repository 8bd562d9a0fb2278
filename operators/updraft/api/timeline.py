"""A job's life as a picture: one bar for each attempt, its checkpoints, what it repeated, and what the platform did.

Pure HTML and CSS, no script; every text is escaped. Places are shares of the time from submission until now or the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape

from updraft.lifecycle.workflow import TRAIN_ROLE
from updraft.schemas import Attempt, Checkpoint, JobDetail

SHOWN_ATTEMPTS = 40
TICKS = 6
TICK_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
MARK_SHARE = 0.5  # per cent of the width: marks that are closer are one
LABEL_SHARE = 9.0  # a narrower stretch has no room for its word
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
ASKED = ("halted", "cancelled")  # by a person: no failure to look up
STYLE = """
.timeline { display: grid; grid-template-columns: max-content 1fr; gap: 0 .9rem; max-width: 72rem; margin: .6rem 0; }
.lane { position: relative; height: 1.3rem; border-left: 1px solid var(--line); }
.lane > * { position: absolute; top: .15rem; bottom: .15rem; box-sizing: border-box; }
.lane .tick { top: 0; bottom: 0; border-left: 1px solid var(--line); }
.lane .band { top: 0; bottom: 0; background: repeating-linear-gradient(45deg, #c9940033 0 6px, transparent 6px 12px); }
.axis { height: 1.2rem; border-color: transparent; color: var(--soft); font-size: 11px; }
.axis span { white-space: nowrap; padding-left: 3px; }
@media (max-width: 800px) { .axis span:nth-child(even) { display: none; } }
.who { text-align: right; white-space: nowrap; line-height: 1.3rem; }
.bar { min-width: 3px; border-radius: 2px; background: #4a7dbd; }
.gap { border-bottom: 1px dashed var(--soft); margin-bottom: .45rem; }
.again { background: repeating-linear-gradient(135deg, #fff9 0 2px, transparent 2px 6px); border-radius: 2px 0 0 2px; }
.mark { width: 8px; height: 8px; margin: .28rem 0 0 -4px; transform: rotate(45deg); border: 1.5px solid #fff;
  background: #174a2a; outline: 1px solid #174a2a; }
.mark.deleted { width: 1px; height: auto; margin: 0; transform: none; border: 0; outline: 0; background: #fffc; }
.mark.quarantined { background: #fff; outline: 2px solid #d0342c; }
.told { grid-column: 2; margin: 0 0 .5rem; font-size: 13px; overflow-wrap: anywhere; }
.told b { font-weight: 600; }
.stretch { font-size: 11px; line-height: 1rem; padding-left: 4px; overflow: hidden; white-space: nowrap; color: #fff;
  background: #7a8288; }
.c-done, .s-COMPLETED { background: #2e8b57; } .c-infrastructure, .s-RECOVERING { background: #d9822b; }
.c-program, .s-FAILED { background: #d0342c; } .c-configuration, .c-data { background: #8e44ad; }
.c-preempted { background: #5b7c99; } .c-halted, .s-HALTED { background: #c99400; }
.c-cancelled, .s-CANCELLED { background: #8a8a8a; } .c-deadline { background: #8b5a2b; }
.s-PROCESSING { background: #4a7dbd; } .s-STORING { background: #3a9a94; }
.s-DEPLOYING, .s-DOWNLOADING { background: #6f8fb3; }
.key { color: var(--soft); font-size: 12px; } .key > span { margin-right: 1rem; white-space: nowrap; }
.key i { display: inline-block; position: static; width: 10px; height: 10px; margin: 0 5px 0 0; border-radius: 2px; }
.key i.mark { width: 7px; height: 7px; margin: 0 8px 0 3px; border-radius: 0; }
.key i.deleted { width: 2px; height: 11px; margin: 0 7px -2px 3px; background: var(--soft); }
.key i.again { border-radius: 2px;
  background: repeating-linear-gradient(135deg, #fff9 0 2px, transparent 2px 6px), #4a7dbd; }
"""


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


def draw(job: JobDetail, attempts: Sequence[Attempt], checkpoints: Sequence[Checkpoint], now: datetime) -> str:
    """The picture, or nothing while nothing was launched."""
    if not attempts:
        return ""
    scale = Scale(job.created_at, job.updated_at if job.ended else max(now, job.updated_at))
    backdrop = "".join([*_grid(scale), *_halts(job, scale)])
    shown = attempts[-SHOWN_ATTEMPTS:]
    parts = [
        f'<div></div><div class="lane axis">{"".join(_axis(scale))}</div>',
        f'<div class="who soft">job</div><div class="lane">{"".join(_states(job, scale))}</div>',
    ]
    for attempt in shown:
        before = next((a for a in reversed(attempts) if a.role == attempt.role and a.number < attempt.number), None)
        own = [item for item in checkpoints if attempt.role == TRAIN_ROLE and item.attempt == attempt.number]
        lane = "".join([backdrop, *_bar(attempt, before, scale), *_marks(own, scale)])
        parts.append(f'<div class="who">{attempt.number} {escape(attempt.role)}</div><div class="lane">{lane}</div>')
        parts.append(f'<p class="told">{told(attempt)}</p>')
    left_out = len(attempts) - len(shown)
    head = f'<p class="soft">The last {len(shown)}; {left_out} before them are not drawn.</p>' if left_out else ""
    return f'{head}<div class="timeline">{"".join(parts)}</div>{_key(shown, checkpoints)}'


def told(attempt: Attempt) -> str:
    """An attempt in a line: what it went on from, its steps, how it ended and what was done about it."""
    parts = []
    if attempt.resume is not None and attempt.role == TRAIN_ROLE:
        name = attempt.resume.checkpoint
        parts.append(f"from <b>{escape(name)}</b>" if name else "from the beginning")
        if attempt.resume.repeats:
            parts.append(f"{attempt.resume.repeats} steps repeated")
    if attempt.first_step is not None and attempt.role == TRAIN_ROLE:  # an evaluation reports all it has at one step
        parts.append(f"steps {attempt.first_step} to {attempt.last_step}")
    if attempt.revision:
        parts.append(f"revision {attempt.revision} of the manifest")
    begun = f'<span class="soft">{", ".join(parts)}</span>' if parts else ""
    if attempt.cause is None or attempt.ended_at is None:
        return begun or "runs"
    if attempt.cause == "done":
        end = f"done in {span((attempt.ended_at - attempt.started_at).total_seconds())}"
        return f"{begun} · {end}" if begun else end
    end = f"<b>{escape(CAUSES.get(attempt.cause, attempt.cause))}</b>"
    if attempt.label and attempt.cause not in ASKED:
        end += f" <code>{escape(attempt.label)}</code>"
    if attempt.reason:
        end += f": {escape(attempt.reason)}"
    done = f"→ <b>{escape(attempt.done)}</b>" if attempt.done else ""
    return " ".join(filter(None, [begun, "·" if begun else "", end, done]))


def _axis(scale: Scale) -> Iterator[str]:
    for moment, label in _ticks(scale):
        yield f'<span style="left:{scale.at(moment):.3f}%">{label}</span>'


def _grid(scale: Scale) -> Iterator[str]:
    for moment, _ in _ticks(scale):
        yield f'<span class="tick" style="left:{scale.at(moment):.3f}%"></span>'


def _ticks(scale: Scale) -> Iterator[tuple[datetime, str]]:
    first = "%H:%M:%S" if scale.seconds < 43_200 else "%Y-%m-%d %H:%M"
    step = next((s for s in TICK_SECONDS if scale.seconds / s <= TICKS), None)
    if step is None:
        step = 86_400 * -(-int(scale.seconds) // (86_400 * TICKS))
    for number in range(int(scale.seconds // step) + 1):
        seconds = number * step
        if 100 * seconds / scale.seconds < 93 or number == 0:  # the last one would have no room for its label
            yield scale.since + timedelta(seconds=seconds), _after(seconds) if number else f"{scale.since:{first}}"


def _after(seconds: int) -> str:
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds % unit == 0:
            return f"+{seconds // unit} {name}"
    return f"+{seconds // 60}:{seconds % 60:02d} min" if seconds >= 60 else f"+{seconds} s"


def _states(job: JobDetail, scale: Scale) -> Iterator[str]:
    """The stretches of the job's states, without the notes inside them."""
    for state, begin, end in _stretches(job, scale.until):
        seconds = (end - begin).total_seconds()
        word = escape(state) if 100 * seconds / scale.seconds >= LABEL_SHARE else ""
        title = escape(f"{state} for {span(seconds)}, since {begin:%Y-%m-%d %H:%M:%S}")
        yield f'<span class="stretch s-{escape(state)}" style="{scale.place(begin, end)}" title="{title}">{word}</span>'


def _stretches(job: JobDetail, until: datetime) -> Iterator[tuple[str, datetime, datetime]]:
    changes = [item for item in job.transitions if item.state != item.previous]
    for item, after in zip(changes, [*(c.at for c in changes[1:]), until], strict=True):
        if item is not changes[-1] or not job.ended:
            yield item.state, item.at, after


def _halts(job: JobDetail, scale: Scale) -> Iterator[str]:
    for state, begin, end in _stretches(job, scale.until):
        if state == "HALTED":
            yield f'<span class="band" style="{scale.place(begin, end)}" title="halted"></span>'


def _bar(attempt: Attempt, before: Attempt | None, scale: Scale) -> Iterator[str]:
    begin, end = attempt.started_at, attempt.ended_at or scale.until
    if before is not None and before.ended_at is not None and before.ended_at < begin:
        waited = f"{span((begin - before.ended_at).total_seconds())} from the end of attempt {before.number}"
        place = scale.place(before.ended_at, begin)
        yield f'<span class="gap" style="{place}" title="{escape(waited)}"></span>'
    cause = attempt.cause or "runs"
    title = escape(f"attempt {attempt.number}: {cause}, {span((end - begin).total_seconds())}")
    yield f'<span class="bar c-{escape(cause)}" style="{scale.place(begin, end)}" title="{title}"></span>'
    share = _repeated(attempt)
    if share:
        repeated = attempt.resume.repeats if attempt.resume else 0
        again = scale.place(begin, begin + share * (end - begin))
        yield f'<span class="again" style="{again}" title="about here: {repeated} steps a second time"></span>'


def _repeated(attempt: Attempt) -> float:
    """Which part of the attempt did steps that had been done before, as far as its steps tell."""
    repeats = attempt.resume.repeats if attempt.resume is not None else None
    if not repeats or attempt.first_step is None or attempt.last_step is None:
        return 0.0
    return min(repeats / max(attempt.last_step - attempt.first_step + 1, 1), 1.0)


def _marks(checkpoints: Iterable[Checkpoint], scale: Scale) -> Iterator[str]:
    """Kept and quarantined ones always; of deleted ones that would cover each other, one."""
    last = -MARK_SHARE
    for item in sorted(checkpoints, key=lambda c: (c.state != "deleted", c.created_at or scale.since)):
        left = scale.at(item.created_at or scale.since)
        if item.state == "deleted":
            if left - last < MARK_SHARE:
                continue
            last = left
        said = f"{item.name}, step {item.step}: {item.state}" + (f" ({item.reason})" if item.reason else "")
        yield f'<span class="mark {escape(item.state)}" style="left:{left:.3f}%" title="{escape(said)}"></span>'


def _key(attempts: Sequence[Attempt], checkpoints: Sequence[Checkpoint]) -> str:
    causes = [cause for cause in CAUSES if any(a.cause == cause for a in attempts)]
    words = [f'<span><i class="bar c-{cause}"></i>{CAUSES[cause]}</span>' for cause in causes]
    if any(a.cause is None for a in attempts):
        words.insert(0, '<span><i class="bar"></i>runs</span>')
    states = [state for state in ("kept", "deleted", "quarantined") if any(c.state == state for c in checkpoints)]
    words += [f'<span><i class="mark {state}"></i>checkpoint, {state}</span>' for state in states]
    if any(_repeated(a) for a in attempts):
        words.append('<span><i class="again"></i>steps done a second time</span>')
    return f'<p class="key">{"".join(words)}</p>'


def span(seconds: float) -> str:
    """A duration for people: `42 s`, `3 min 20 s`, `2 h 05 min`, `3 d 4 h`."""
    whole = max(round(seconds), 0)
    if whole < 100:
        return f"{whole} s"
    if whole < 6_000:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 172_800:
        return f"{whole // 3_600} h {whole % 3_600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"
