"""Pauses that double, up to a limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from updraft_learner.backoff import Backoff


def test_pauses_double_up_to_the_limit() -> None:
    backoff = Backoff(5.0, 300.0)
    assert [backoff.seconds(failures) for failures in range(9)] == [0, 5, 10, 20, 40, 80, 160, 300, 300]


@given(st.integers(-1, 10**6), st.floats(0.001, 100), st.floats(0.001, 1000))
def test_a_pause_is_never_above_the_limit_and_never_shrinks(failures: int, first: float, limit: float) -> None:
    backoff = Backoff(first, limit)
    pause = backoff.seconds(failures)
    assert 0 <= pause <= backoff.seconds(failures + 1) <= limit
    assert pause / 2 <= backoff.jittered_seconds(failures) <= pause
