"""Which learner of a training keeps the others waiting, from the time that each needs for the same work."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from updraft.recovery.stragglers import FACTOR, WINDOW_SECONDS, WINDOWS, Pace, StragglerHistory, compare


def followed(seconds_of_work: Mapping[int, float], windows: int, works: Mapping[int, float] | None = None) -> list[int]:
    """Return whom each look finds, one look at the end of each window."""
    history, found = StragglerHistory(), []
    for window in range(windows + 1):
        paces = {}
        for n, each in seconds_of_work.items():
            work = window * (works or {}).get(n, 10.0)
            paces[n] = Pace(work, work * each)
        history, straggler = compare(history, paces, window * WINDOW_SECONDS)
        found.append(0 if straggler is None else straggler[0])
    return found


def test_one_that_is_slow_in_several_windows_is_found() -> None:
    assert followed({1: 1.0, 2: 1.1, 3: 3.3}, WINDOWS) == [0] * WINDOWS + [3]


def test_the_reason_says_how_slow() -> None:
    history = StragglerHistory()
    for window in range(WINDOWS + 1):
        paces = {1: Pace(window, window), 2: Pace(window, 4 * window)}
        history, found = compare(history, paces, window * WINDOW_SECONDS)
    assert found == (2, "it needs 4.0 times as long as the others for the same work")


def test_the_slowest_of_several_is_found() -> None:
    assert followed({1: 1.0, 2: 1.0, 3: 1.0, 4: 3.0, 5: 5.0}, WINDOWS)[-1] == 5


def test_more_work_is_not_slowness() -> None:
    assert followed({1: 1.0, 2: 1.0}, WINDOWS, works={1: 10, 2: 30}) == [0] * (WINDOWS + 1)


def test_one_that_is_slow_and_has_less_work_keeps_nobody_waiting() -> None:
    assert followed({1: 1.0, 2: 1.0, 3: 2.1}, WINDOWS, works={3: 5.0}) == [0] * (WINDOWS + 1)
    assert followed({1: 1.0, 2: 1.0, 3: 3.1}, WINDOWS, works={3: 5.0})[-1] == 3


def test_one_without_work_is_compared_with_nobody() -> None:
    assert followed({1: 1.0, 2: 1.0, 3: 9.0}, WINDOWS, works={3: 0.0})[-1] == 0


def test_one_that_was_slow_for_a_while_is_left_alone() -> None:
    history, found = StragglerHistory(), []
    for window in range(3 * WINDOWS):
        slow = 5.0 if window % WINDOWS else 0.0  # it is as fast as the others in every third window
        before = history.paces.get(2, Pace(0, 0))
        paces = {1: Pace(window, window), 2: Pace(before.work + 1, before.seconds + max(1.0, slow))}
        history, straggler = compare(history, paces, window * WINDOW_SECONDS)
        found.append(straggler)
    assert found == [None] * len(found)


def test_looks_within_a_window_change_nothing() -> None:
    history, _ = compare(StragglerHistory(), {1: Pace(0, 0)}, 0.0)
    assert compare(history, {1: Pace(5, 5)}, WINDOW_SECONDS / 2) == (history, None)


@given(st.dictionaries(st.integers(1, 9), st.floats(0.1, 100), min_size=1))
def test_nobody_is_blamed_who_is_not_slower_than_the_others(seconds: dict[int, float]) -> None:
    found = followed(seconds, WINDOWS)[-1]
    if found:
        others = sorted(each for n, each in seconds.items() if n != found)
        assert seconds[found] > FACTOR * others[0]
    if max(seconds.values()) <= FACTOR * min(seconds.values()):
        assert not found
