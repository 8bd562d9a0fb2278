"""What the planner decided about sizes, and what each decision brought."""

from __future__ import annotations

from datetime import timedelta

import pytest
from ledger_helpers import add_job
from unit.ledger.test_sizes import NOON, decide, ended, running, waiting

from updraft.allocation.scalability import Report
from updraft.ledger import Ledger
from updraft.ledger.records import ResizeRow
from updraft.lifecycle import State

TENANTS = ("default",)


def newest(ledger: Ledger) -> ResizeRow:
    return ledger.queue.rounds(10, TENANTS)[0]


def test_a_start_is_a_change_without_a_comparison(ledger: Ledger) -> None:
    waiting(ledger, "a")
    decide(ledger, granted=("a",), a=2)
    row = newest(ledger)
    assert (row.job_id, row.before, row.after, row.after_batch, row.reason) == ("a", 0, 2, 64, "2 learners")
    assert (row.gained, row.closed) == (None, True)


def test_what_a_resize_brought_is_measured(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    ledger.queue.note_speed("a", 1, Report(2, 64, 0.2), 100, NOON)
    decide(ledger, a=4)
    row = newest(ledger)
    assert (row.before, row.before_batch, row.after, row.after_batch) == (2, 64, 4, 128)
    assert (row.expected, row.gained, row.pause_seconds, row.closed) == (4.0, None, None, False)
    ended(ledger, "a")
    ledger.jobs.move("a", State.PROCESSING, "runs")
    began = ledger.now() + timedelta(seconds=7)
    ledger.queue.note_speed("a", 2, Report(4, 128, 0.25), 100, began)
    row = newest(ledger)
    assert (row.gained, row.closed) == (pytest.approx(2 * 0.2 / 0.25), True)
    assert row.pause_seconds == pytest.approx(7, abs=1)
    ledger.queue.note_speed("a", 2, Report(4, 128, 0.2), 900, began)
    assert newest(ledger).gained == pytest.approx(2)  # a longer measurement is more exact
    assert newest(ledger).pause_seconds == pytest.approx(7, abs=1)


def test_a_report_of_the_old_size_says_nothing_about_the_new_one(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    ledger.queue.note_speed("a", 1, Report(2, 64, 0.2), 100, NOON)
    decide(ledger, a=4)
    ledger.queue.note_speed("a", 1, Report(2, 64, 0.1), 200, NOON)
    assert newest(ledger).gained is None
    assert not newest(ledger).closed


def test_a_job_that_was_not_measured_before_has_a_pause_but_no_gain(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    decide(ledger, a=4)
    ended(ledger, "a")
    ledger.jobs.move("a", State.PROCESSING, "runs")
    ledger.queue.note_speed("a", 2, Report(4, 128, 0.2), 100, ledger.now())
    row = newest(ledger)
    assert (row.gained, row.closed) == (None, True)
    assert row.pause_seconds is not None


def test_a_job_that_gives_up_its_room_is_not_measured_any_more(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    decide(ledger, a=4)
    assert not newest(ledger).closed
    ledger.queue.release("a")
    assert (newest(ledger).gained, newest(ledger).closed) == (None, True)


def test_a_round_is_shown_once_all_its_results_are_known(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    running(ledger, "b", 2)
    for number in sorted({row.round for row in ledger.queue.rounds(10, TENANTS)}):
        (row,) = ledger.queue.round_to_show()
        assert row.round == number
        ledger.queue.mark_shown(number)
    assert ledger.queue.round_to_show() == []
    decide(ledger, a=4, b=1)
    first, second = ledger.queue.rounds(1, TENANTS)
    assert first.round == second.round
    assert ledger.queue.round_to_show() == []
    ledger.queue.release("a")
    assert ledger.queue.round_to_show() == []
    ledger.queue.release("b")
    assert {row.job_id for row in ledger.queue.round_to_show()} == {"a", "b"}
    ledger.queue.mark_shown(first.round)
    assert ledger.queue.round_to_show() == []


def test_the_newest_rounds_are_listed(ledger: Ledger) -> None:
    for name in "abc":
        running(ledger, name, 2)
    assert [row.job_id for row in ledger.queue.rounds(2, TENANTS)] == ["c", "b"]


def test_a_round_whose_result_is_awaited_does_not_hold_up_later_ones(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    running(ledger, "b", 2)
    for row in ledger.queue.rounds(10, TENANTS):
        ledger.queue.mark_shown(row.round)
    decide(ledger, a=4)
    assert ledger.queue.round_to_show() == []
    running(ledger, "c", 2)
    assert [row.job_id for row in ledger.queue.round_to_show()] == ["c"]


def test_rounds_of_other_tenants_are_neither_listed_nor_counted(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    add_job(ledger, "b", tenant="vision")
    assert [row.job_id for row in ledger.queue.rounds(1, TENANTS)] == ["a"]
    assert ledger.queue.rounds(10, ("vision",)) == []


def test_a_size_that_was_not_reached_in_place_is_not_tried_again_soon(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    ledger.queue.note_speed("a", 1, Report(2, 64, 0.2), 100, NOON)
    decide(ledger, a=4)
    ledger.queue.settle_in_place("a", 2, "2 of 2 learners run", {}, pause=None)
    assert (newest(ledger).closed, newest(ledger).gained) == (True, None)
    assert ledger.queue.size("a") == (2, 64)
    assert [size.learners for size in ledger.queue.sizes("a").rows] == [1, 2, 3]


def test_each_generation_has_a_speed_of_its_own(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    ledger.queue.note_speed("a", 1, Report(2, 64, 0.2), 100, NOON)
    decide(ledger, a=4)
    ledger.queue.settle_in_place("a", 4, "4 of 4 learners run", {}, pause=0.03)
    ledger.queue.note_speed("a", 1, Report(4, 64, 0.1), 100, NOON, generation=2)
    assert (newest(ledger).pause_seconds, newest(ledger).gained) == (0.03, pytest.approx(4))
    measured = {size.learners: size.step_seconds for size in ledger.queue.sizes("a").rows}
    assert (measured[2], measured[4]) == (0.2, 0.1)
