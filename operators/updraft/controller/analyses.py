"""Read what a program reports of its own scaling (`updraft_learner.scaling`). Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from updraft.ledger.records import Analysis

MOST_PAIRS = 16


def analysis_of(scaling: Mapping[str, Any]) -> Analysis:
    """Return what a learner's status says of the scaling. The status comes from a pod of a tenant: what is not a finite
    number above 0 is left out."""
    return Analysis(
        timings=_pairs(scaling.get("timings")),
        gradient_bytes=_positive(scaling.get("gradient_bytes")),
        noise=_positive(scaling.get("noise")),
        follows_batch=bool(scaling.get("follows_batch")),
        exchange=_pairs(scaling.get("exchange")),
    )


def _positive(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and 0 < value < 1e18 else None


def _pairs(value: Any) -> tuple[tuple[float, float], ...]:
    if not isinstance(value, list):
        return ()
    found = []
    for pair in value[:MOST_PAIRS]:
        if isinstance(pair, list) and len(pair) == 2:
            size, seconds = _positive(pair[0]), _positive(pair[1])
            if size is not None and seconds is not None:
                found.append((size, seconds))
    return tuple(found)
