"""One picture per kind of fault, as SVG text: the steps of the jobs that it met, over the time since it came.

Pure; called by `report`. A line is one process of a job's first learner; a process that followed a lost one is drawn
in another colour. The band is the time that the fault lasted.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from faults.outcomes import RunRecord
from faults.summary import jobs_hit

WIDTH, HEIGHT = 720, 240
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 14, 34
BEFORE_SECONDS, AFTER_SECONDS = 20.0, 120.0
JOBS = 40
FIRST, LATER, BAND, AXIS, WRONG = "#4a6fa5", "#d9822b", "#c0392b", "#777", "#c0392b"


def picture(kind: str, records: Sequence[RunRecord]) -> str:
    """Draw the runs of a kind. `records`: single runs of the kind, newest last."""
    lines = [(record, job) for record in reversed(records) for job in jobs_hit(record) if job.curves][:JOBS]
    healed = [r.healed_seconds[kind] for r in records if kind in r.healed_seconds]
    end = max([60.0, *(point[0] for _, job in lines for curve in job.curves for point in curve.points)])
    end = min(end, max(AFTER_SECONDS, 1.5 * max(healed, default=0.0)))
    top = max([10, *(point[1] for _, job in lines for curve in job.curves for point in curve.points)])

    def x(seconds: float) -> float:
        span = min(max(seconds, -BEFORE_SECONDS), end) + BEFORE_SECONDS
        return LEFT + span / (end + BEFORE_SECONDS) * (WIDTH - LEFT - RIGHT)

    def y(step: float) -> float:
        return HEIGHT - BOTTOM - step / top * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="sans-serif" '
        f'font-size="11"><title>{escape(kind)}</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    if healed:
        width = max(1.0, x(max(healed)) - x(0))
        parts.append(
            f'<rect x="{x(0):.1f}" y="{TOP}" width="{width:.1f}" height="{HEIGHT - TOP - BOTTOM}" fill="{BAND}" '
            'fill-opacity="0.08"/>'
        )
    parts.append(f'<path d="M{x(0):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="{BAND}" stroke-dasharray="4 3"/>')
    for record, job in lines:
        wrong = any(violation.job == job.id for violation in record.violations)
        for number, curve in enumerate(job.curves):
            seen = [point for point in curve.points if -BEFORE_SECONDS <= point[0] <= end]
            if not seen:
                continue
            path = "L".join(f"{x(at):.1f} {y(step):.1f}" for at, step in seen)
            colour = WRONG if wrong else (FIRST if number == 0 else LATER)
            parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-opacity="0.65"/>')
    parts += [
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="{AXIS}"/>',
        *(_tick(x(at), at) for at in _ticks(end)),
        f'<text x="{LEFT - 6}" y="{y(top) + 8:.1f}" text-anchor="end" fill="{AXIS}">{top}</text>',
        f'<text x="{LEFT - 6}" y="{y(0):.1f}" text-anchor="end" fill="{AXIS}">0</text>',
        f'<text x="12" y="{HEIGHT / 2:.0f}" transform="rotate(-90 12 {HEIGHT / 2:.0f})" text-anchor="middle" '
        f'fill="{AXIS}">step</text>',
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end" fill="{AXIS}">seconds since the fault</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _tick(place: float, at: float) -> str:
    return (
        f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle" fill="{AXIS}">{at:g}</text>'
        f'<path d="M{place:.1f} {HEIGHT - BOTTOM}v4" stroke="{AXIS}"/>'
    )


def _ticks(end: float) -> list[float]:
    step = next((s for s in (20, 60, 120, 300, 600) if end / s <= 8), 1200)
    return [0.0, *(float(at) for at in range(step, int(end) + 1, step))]
