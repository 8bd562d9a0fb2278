"""Draw metrics as text: a spark line for a table's row, a small plot for one metric. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None], width: int = 24) -> str:
    """Return one character per bin of values, low to high; a blank where there is no finite number."""
    bins = _bins(values, width)
    finite = [value for value in bins if value is not None]
    if not finite:
        return ""
    low, span = min(finite), max(finite) - min(finite)
    return "".join(
        " " if value is None else BARS[int((value - low) / span * (len(BARS) - 1)) if span else 0] for value in bins
    )


def plot(steps: Sequence[int], values: Sequence[float | None], width: int = 64, height: int = 12) -> str:
    """Return the lines of a plot with its axes; an empty text when there is no finite number."""
    bins = _bins(values, width)
    finite = [value for value in bins if value is not None]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    span = high - low or 1.0
    rows = [[" "] * len(bins) for _ in range(height)]
    for column, value in enumerate(bins):
        if value is not None:
            rows[height - 1 - round((value - low) / span * (height - 1))][column] = "•"
    labels = {0: f"{high:.4g}", height - 1: f"{low:.4g}"}
    margin = max(map(len, labels.values()))
    lines = [f"{labels.get(i, ''):>{margin}} │{''.join(row).rstrip()}" for i, row in enumerate(rows)]
    first, last = str(min(steps)), str(max(steps))
    gap = " " * max(len(bins) - len(first) - len(last), 1)
    return "\n".join([*lines, f"{'':>{margin}} └{'─' * len(bins)}", f"{'':>{margin}}  {first}{gap}{last}  step"])


def _bins(values: Sequence[float | None], width: int) -> list[float | None]:
    """Return at most `width` means of neighbouring values, without those that are not finite."""
    if len(values) <= width:
        return [value if value is not None and math.isfinite(value) else None for value in values]
    bins: list[float | None] = []
    for index in range(width):
        part = values[index * len(values) // width : (index + 1) * len(values) // width]
        finite = [value for value in part if value is not None and math.isfinite(value)]
        bins.append(sum(finite) / len(finite) if finite else None)
    return bins
