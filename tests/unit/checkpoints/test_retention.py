"""Retention never lets the newest or the best go."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from updraft.checkpoints import Kept, retain

START = datetime(2026, 1, 1, tzinfo=UTC)


def kept(name: str, step: int, *, attempt: int = 1, second: int = 0, acc: float | None = None) -> Kept:
    return Kept(name, step, attempt, START + timedelta(seconds=second), {} if acc is None else {"acc": acc})


checkpoints = st.lists(
    st.builds(
        Kept,
        name=st.uuids().map(str),
        step=st.integers(0, 1000),
        attempt=st.integers(1, 3),
        created_at=st.datetimes(timezones=st.just(UTC)),
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
    left = [c for c in given if c.name not in gone]
    assert len(left) >= min(len(given), max(1, latest))
    if not given:
        return
    assert max(c.age for c in given) in {c.age for c in left}
    scored = [c.metrics["acc"] for c in given if "acc" in c.metrics and not math.isnan(c.metrics["acc"])]
    if metric and best and scored:
        wanted = max(scored) if mode == "max" else min(scored)
        assert wanted in [c.metrics.get("acc") for c in left]


def test_what_goes_says_why() -> None:
    given = [kept("a", 1, acc=0.9), kept("b", 2, acc=0.5), kept("c", 3, acc=0.6)]
    assert retain(given, latest=1, best=1, metric="acc") == {"b": "not among the latest 1 nor the best 1 by acc"}


def test_a_folder_without_a_step_that_is_written_again_and_again_keeps_its_newest_versions() -> None:
    names = ["last-a1", *(f"last-a1-v{n}" for n in range(2, 11))]
    given = [kept(name, 0, second=n) for n, name in enumerate(names)]
    random.Random(1).shuffle(given)
    assert set(retain(given, latest=2, best=0, metric=None)) == set(names[:-2])
    assert set(retain(given, latest=1, best=0, metric=None)) == set(names[:-1])


def test_a_later_attempt_is_newer_whatever_the_clocks_and_names_say() -> None:
    given = [kept("last-a9", 0, attempt=9, second=60), kept("last-a10", 0, attempt=10, second=0)]
    assert set(retain(given, latest=1, best=0, metric=None)) == {"last-a9"}


def test_of_equally_good_ones_the_newer_is_the_best() -> None:
    given = [kept("last", 0, second=1, acc=0.9), kept("last-v2", 0, second=2, acc=0.9), kept("z", 0, second=3, acc=0.1)]
    assert set(retain(given, latest=1, best=1, metric="acc")) == {"last"}
    assert set(retain(given, latest=1, best=1, metric="acc", mode="min")) == {"last", "last-v2"}
