"""Draw a job's metrics as curves: one small SVG picture for each metric, one line for each attempt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from updraft.api.pages.render import render
from updraft.lifecycle.workflow import TRAIN_ROLE
from updraft.schemas import Attempt, MetricPoint

SHOWN = 6
POINTS = 400  # of one line; more are not visible
WIDTH, HEIGHT = 420, 180
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 10, 22
COLOURS = ("#4a7dbd", "#d9822b", "#2e8b57", "#8e44ad", "#d0342c", "#3a9a94")
PLATFORM = ("system/", "updraft.", "updraft/")  # metrics that the platform writes


@dataclass(frozen=True)
class Curve:
    """The line of one attempt. `path`: SVG path data in the picture's coordinates."""

    attempt: int
    colour: str
    path: str
    title: str


@dataclass(frozen=True)
class Figure:
    """The picture of one metric: its range, its steps, its lines, and its last value."""

    name: str
    low: float
    high: float
    first_step: int
    last_step: int
    last: float
    lines: tuple[Curve, ...]


def own(names: Sequence[str]) -> list[str]:
    """Return the metrics of the user's program in their order, without those of the platform."""
    return [name for name in names if not name.startswith(PLATFORM)]


def draw(history: Mapping[str, Sequence[MetricPoint]], attempts: Sequence[Attempt]) -> str:
    """Return, as HTML, a picture of each metric that has finite values at two steps or more; "" if none has.

    If a picture has lines of several attempts, a key above the pictures names the attempts' colours.
    """
    training = [attempt for attempt in attempts if attempt.role == TRAIN_ROLE]
    lines = {name: lines for name, points in history.items() if (lines := _lines(points, training))}
    figures = [_figure(name, found) for name, found in list(lines.items())[:SHOWN]]
    if not figures:
        return ""
    numbers = {line.attempt: line for figure in figures for line in figure.lines}
    several = any(len(figure.lines) > 1 for figure in figures)
    return render(
        "curves.html",
        figures=figures,
        key=[numbers[number] for number in sorted(numbers)] if several else [],
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        top=TOP,
        bottom=HEIGHT - BOTTOM,
    )


def _lines(points: Sequence[MetricPoint], attempts: Sequence[Attempt]) -> list[tuple[int, list[tuple[int, float]]]]:
    """Return (attempt number, its points) for each attempt; none for a metric without two steps."""
    told = [(point.step, point.t, point.value) for point in points if point.value is not None]
    return list(_by_attempt(told, attempts)) if len({step for step, _, _ in told}) >= 2 else []


def _colour(number: int) -> str:
    return COLOURS[(max(number, 1) - 1) % len(COLOURS)]


def _figure(name: str, found: Sequence[tuple[int, Sequence[tuple[int, float]]]]) -> Figure:
    steps = [step for _, line in found for step, _ in line]
    values = [value for _, line in found for _, value in line]
    low, high = min(values), max(values)
    first, last = min(steps), max(steps)
    spread = (high - low) or abs(high) or 1.0

    def place(step: int, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * (step - first) / (last - first)
        y = TOP + (HEIGHT - TOP - BOTTOM) * ((high - value) / spread)
        return f"{x:.1f} {y:.1f}"

    lines = tuple(
        Curve(
            number,
            _colour(number),
            path="M" + " L".join(place(step, value) for step, value in line),
            title=f"attempt {number}: {line[-1][1]:.5g} at step {line[-1][0]}",
        )
        for number, line in found
    )
    return Figure(name, low, high, first, last, values[-1], lines)


def _by_attempt(
    told: Sequence[tuple[int, float, float]], attempts: Sequence[Attempt]
) -> Iterator[tuple[int, list[tuple[int, float]]]]:
    """Yield (attempt number, its points): a point belongs to the last attempt that began before it."""
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
