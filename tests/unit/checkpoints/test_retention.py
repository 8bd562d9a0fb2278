"""Retention never lets the newest or the best go."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from updraft.checkpoints import Kept, retain

START = datetime(2026, 1, 1, tzinfo=UTC)


def kept(name: str, step: int, *, second: int = 0, acc: float | None = None, **more: Any) -> Kept:
    return Kept(
        name,
        step,
        more.pop("attempt", 1),
        START + timedelta(seconds=second),
        {} if acc is None else {"acc": acc},
        **more,
    )


checkpoints = st.lists(
    st.builds(
        Kept,
        name=st.uuids().map(str),
        step=st.integers(0, 1000),
        attempt=st.integers(1, 3),
        created_at=st.datetimes(timezones=st.just(UTC)),
        metrics=st.dictionaries(st.sampled_from(["acc", "loss"]), st.floats(allow_infinity=False), max_size=2),
        learner=st.integers(1, 3),
        order=st.integers(0, 20),
    ),
    max_size=12,
    unique_by=lambda c: c.name,
)


@given(
    checkpoints,
    st.integers(0, 4),
    st.integers(0, 4),
    st.sampled_from([None, "acc"]),
    st.sampled_from(["max", "min"]),
    st.none() | st.integers(1, 5),
    st.data(),
)
def test_of_every_learner_the_newest_and_the_best_stay_and_what_was_asked_for(
    given: list[Kept],
    latest: int,
    best: int,
    metric: str | None,
    mode: str,
    every_nth: int | None,
    data: st.DataObject,
) -> None:
    protected = data.draw(st.sets(st.sampled_from([c.name for c in given]))) if given else set()
    gone = retain(given, latest=latest, best=best, metric=metric, mode=mode, every_nth=every_nth, protected=protected)
    assert gone.keys() <= {c.name for c in given} - protected
    assert not {c.name for c in given if every_nth and c.order and c.order % every_nth == 0} & gone.keys()
    for learner in {c.learner for c in given}:
        own = [c for c in given if c.learner == learner]
        left = [c for c in own if c.name not in gone]
        assert len(left) >= min(len(own), max(1, latest))
        assert max(c.age for c in own) in {c.age for c in left}
        scored = [c.metrics["acc"] for c in own if "acc" in c.metrics and not math.isnan(c.metrics["acc"])]
        if metric and best and scored:
            reached = max(scored) if mode == "max" else min(scored)
            # Another learner's metric at the same step may be better still, and stand for one of these.
            better = [s for c in left if (s := score(c, given)) is not None]
            assert (max(better) >= reached) if mode == "max" else (min(better) <= reached)


def score(checkpoint: Kept, others: list[Kept]) -> float | None:
    values = [checkpoint.metrics.get("acc")]
    if values == [None] and checkpoint.step:
        values = [c.metrics.get("acc") for c in others if (c.step, c.attempt) == (checkpoint.step, checkpoint.attempt)]
    known = [value for value in values if value is not None and not math.isnan(value)]
    return known[0] if known else None


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=40), st.integers(1, 3), st.integers(1, 5))
def test_pruned_after_each_one_what_stays_is_the_latest_and_each_nth(
    arrivals: list[tuple[int, bool]], latest: int, every_nth: int
) -> None:
    """As a job runs: each learner's counted by themselves, whatever the others store, and some found damaged."""
    there: list[Kept] = []
    done = {1: 0, 2: 0, 3: 0}
    for number, (learner, damaged) in enumerate(arrivals, start=1):
        done[learner] += 1
        if damaged:
            continue
        there.append(kept(f"{number}", done[learner], learner=learner, order=done[learner]))
        gone = retain(there, latest=latest, best=0, metric=None, every_nth=every_nth)
        there = [c for c in there if c.name not in gone]
    for learner in done:
        good = [n for n in range(1, done[learner] + 1) if not _damaged(arrivals, learner, n)]
        wanted = set(good[-latest:]) | {n for n in good if n % every_nth == 0}
        assert {c.order for c in there if c.learner == learner} == wanted


def _damaged(arrivals: list[tuple[int, bool]], learner: int, number: int) -> bool:
    return [damaged for who, damaged in arrivals if who == learner][number - 1]


def test_a_learner_without_the_metric_keeps_what_belongs_to_the_best() -> None:
    given = [kept(f"{n}", n, acc=acc) for n, acc in ((1, 0.9), (2, 0.1), (3, 0.2))]
    given += [kept(f"{n}-l2", n, learner=2) for n in (1, 2, 3)]
    assert set(retain(given, latest=1, best=1, metric="acc")) == {"2", "2-l2"}


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


def test_the_reason_names_all_that_was_asked_for() -> None:
    given = [kept("a", 1, order=1), kept("b", 2, order=2)]
    why = "not among the latest 1 nor the best 2 by acc nor each 4th"
    assert retain(given, latest=1, best=2, metric="acc", every_nth=4) == {"a": why}
    assert retain(given, latest=1, best=0, metric=None, protected={"a"}) == {}
