"""Retention never lets the newest or the best go."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from updraft.checkpoints import Kept, retain

checkpoints = st.lists(
    st.builds(
        Kept,
        name=st.uuids().map(str),
        step=st.integers(0, 1000),
        metrics=st.dictionaries(st.sampled_from(["acc", "loss"]), st.floats(allow_infinity=False), max_size=2),
    ),
    max_size=12,
    unique_by=lambda c: c.name,
)


@given(
    checkpoints, st.integers(0, 4), st.integers(0, 4), st.sampled_from([None, "acc"]), st.sampled_from(["max", "min"])
)
def test_the_newest_and_the_best_are_always_kept(
    given: list[Kept], latest: int, best: int, metric: str | None, mode: str
) -> None:
    gone = retain(given, latest=latest, best=best, metric=metric, mode=mode)
    kept = [c for c in given if c.name not in gone]
    assert len(kept) >= min(len(given), max(1, latest))
    if not given:
        return
    assert max(c.step for c in given) in {c.step for c in kept}
    scored = [c.metrics["acc"] for c in given if "acc" in c.metrics and not math.isnan(c.metrics["acc"])]
    if metric and best and scored:
        wanted = max(scored) if mode == "max" else min(scored)
        assert wanted in [c.metrics.get("acc") for c in kept]


def test_what_goes_says_why() -> None:
    given = [Kept("a", 1, {"acc": 0.9}), Kept("b", 2, {"acc": 0.5}), Kept("c", 3, {"acc": 0.6})]
    assert retain(given, latest=1, best=1, metric="acc") == {"b": "not among the latest 1 nor the best 1 by acc"}
