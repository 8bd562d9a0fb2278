"""Metrics of a job as curves: one small SVG picture per metric, one line per attempt. Pure; every text is escaped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from html import escape

from updraft.lifecycle.workflow import TRAIN_ROLE
from updraft.schemas import Attempt, MetricPoint

SHOWN = 6
POINTS = 400  # of one line; more cannot be told apart
WIDTH, HEIGHT = 420, 180
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 10, 22
COLOURS = ("#4a7dbd", "#d9822b", "#2e8b57", "#8e44ad", "#d0342c", "#3a9a94")
PLATFORM = ("system/", "updraft.", "updraft/")  # metrics that the platform writes
STYLE = """
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); gap: .5rem 1.2rem; }
.curves figure { margin: 0; } .curves figcaption { font-weight: 600; overflow-wrap: anywhere; }
.curves svg { width: 100%; height: auto; display: block; }
.curves text { fill: var(--soft); font-size: 11px; } .curves path { fill: none; stroke-width: 1.6; }
.curves .frame { stroke: var(--line); stroke-width: 1; }
"""


def own(names: Sequence[str]) -> list[str]:
    """The metrics of the user's program, in their order; those of the platform left out."""
    return [name for name in names if not name.startswith(PLATFORM)]


def draw(history: Mapping[str, Sequence[MetricPoint]], attempts: Sequence[Attempt]) -> str:
    """A picture for each metric that has two finite points at least; '' if none has. With more than one line in one of
    them, the attempts' colours stand above."""
    training = [attempt for attempt in attempts if attempt.role == TRAIN_ROLE]
    lines = {name: lines for name, points in history.items() if (lines := _lines(points, training))}
    shown = dict(list(lines.items())[:SHOWN])
    if not shown:
        return ""
    figures = "".join(_figure(name, found) for name, found in shown.items())
    numbers = sorted({number for found in shown.values() for number, _ in found})
    keys = "".join(f'<span><i style="background:{_colour(n)}"></i>attempt {n}</span> ' for n in numbers)
    key = f'<p class="key">{keys}</p>' if any(len(found) > 1 for found in shown.values()) else ""
    return f'{key}<div class="curves">{figures}</div>'


def _lines(points: Sequence[MetricPoint], attempts: Sequence[Attempt]) -> list[tuple[int, list[tuple[int, float]]]]:
    """(number of the training's launch, its points) of a metric; none if it has not two steps."""
    told = [(point.step, point.t, point.value) for point in points if point.value is not None]
    return list(_by_attempt(told, attempts)) if len({step for step, _, _ in told}) >= 2 else []


def _colour(number: int) -> str:
    return COLOURS[(max(number, 1) - 1) % len(COLOURS)]


def _figure(name: str, found: Sequence[tuple[int, Sequence[tuple[int, float]]]]) -> str:
    steps = [step for _, line in found for step, _ in line]
    values = [value for _, line in found for _, value in line]
    low, high = min(values), max(values)
    first, last = min(steps), max(steps)
    spread = (high - low) or abs(high) or 1.0

    def place(step: int, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * (step - first) / (last - first)
        y = TOP + (HEIGHT - TOP - BOTTOM) * ((high - value) / spread)
        return f"{x:.1f} {y:.1f}"

    lines = []
    for number, line in found:
        path = "M" + " L".join(place(step, value) for step, value in line)
        title = f"attempt {number}: {line[-1][1]:.5g} at step {line[-1][0]}"
        lines.append(f'<path d="{path}" stroke="{_colour(number)}"><title>{title}</title></path>')
    bottom = HEIGHT - BOTTOM
    return (
        f"<figure><figcaption>{escape(name)} <span class=soft>{values[-1]:.5g}</span></figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)} over steps">'
        f'<path class="frame" d="M{LEFT} {TOP} V{bottom} H{WIDTH - RIGHT}"/>'
        f'<text x="{LEFT - 4}" y="{TOP + 8}" text-anchor="end">{high:.3g}</text>'
        f'<text x="{LEFT - 4}" y="{bottom}" text-anchor="end">{low:.3g}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">step {first}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{last}</text>'
        f"{''.join(lines)}</svg></figure>"
    )


def _by_attempt(
    told: Sequence[tuple[int, float, float]], attempts: Sequence[Attempt]
) -> Iterator[tuple[int, list[tuple[int, float]]]]:
    """(number of the training's launch, its points): a point belongs to the last attempt that began before it."""
    begins: list[datetime] = [attempt.started_at for attempt in attempts]
    lines: dict[int, list[tuple[int, float]]] = {}
    for step, t, value in told:
        number = max(sum(begin.timestamp() <= t for begin in begins), 1)
        lines.setdefault(number, []).append((step, value))
    for number, line in sorted(lines.items()):
        line.sort()
        every = -(-len(line) // POINTS)
        kept = line[::every]
        yield number, kept if kept[-1] == line[-1] else [*kept, line[-1]]
