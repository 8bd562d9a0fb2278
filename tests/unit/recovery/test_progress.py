"""Whether an attempt gets anywhere. The clock is the test's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updraft.recovery.progress import ProgressFinding, ProgressHistory, ProgressLimits, ProgressReport, observe

WARN = ProgressLimits()


class Look:
    """A watch with a clock: each look reads the newest status of some learner."""

    def __init__(self, limits: ProgressLimits = WARN) -> None:
        self.limits, self.watch, self.now = limits, ProgressHistory(), 1000.0
        self.found: list[ProgressFinding] = []

    def __call__(
        self, step: int | None = None, *, learner: int = 1, after: float = 0.0, **seen: Any
    ) -> ProgressFinding | None:
        self.now += after
        status = ProgressReport(learner, step, seen.pop("phase", "running"), seen.pop("nan", False), self.now, **seen)
        self.watch, finding = observe(self.watch, status, self.now, self.limits)
        if finding:
            self.found.append(finding)
        return finding

    def steps(self, steps: Iterable[int], *, each: float, **seen: Any) -> None:
        for step in steps:
            assert self(step, after=each, **seen) is None


def test_a_stall_is_told_once_against_the_jobs_own_pace_and_its_end_too() -> None:
    look = Look()
    look.steps(range(10), each=60)
    assert look(9, after=1199) is None
    finding = look(9, after=1)
    assert finding == ProgressFinding(
        "stalled", 1, "learner 1 is at step 9 for 1200 s, where a step usually takes 60 s"
    )
    assert look(9, after=5000) is None
    assert look(10, after=1) == ProgressFinding("resumed", 1, "learner 1 goes on: step 10")


def test_a_quick_job_is_given_five_minutes_at_least() -> None:
    look = Look()
    look.steps(range(0, 1000, 50), each=5)
    assert look(950, after=299) is None
    finding = look(950, after=1)
    assert finding is not None
    assert finding.reason == "learner 1 is at step 950 for 300 s, where a step usually takes 0.1 s"


def test_a_pause_that_a_job_came_out_of_is_no_stall_when_it_comes_again() -> None:
    look = Look()
    look.steps(range(1, 6), each=1)
    look(5, after=400)  # the evaluation at an epoch's end, seen as a stall the first time
    assert look(6, after=1) == ProgressFinding("resumed", 1, "learner 1 goes on: step 6")
    look.steps(range(7, 12), each=1)
    assert look(11, after=500) is None
    assert [finding.kind for finding in look.found] == ["stalled", "resumed"]


def test_too_short_a_history_says_nothing() -> None:
    look = Look()
    look.steps(range(3), each=1)
    assert look(2, after=10_000) is None


def test_the_manifests_own_limit_rules_from_the_first_step_on() -> None:
    look = Look(ProgressLimits(no_progress_seconds=30))
    look(1, after=1)
    assert look(1, after=29) is None
    finding = look(1, after=1)
    assert finding is not None
    assert finding.reason == "learner 1 is at step 1 for 30 s; budget.no_progress is 30 s"


@pytest.mark.parametrize(("on_no_progress", "act"), [("warn", False), ("restart", True), ("stop", True)])
def test_a_stall_acts_as_the_manifest_says(on_no_progress: Any, act: bool) -> None:
    look = Look(ProgressLimits(no_progress_seconds=30, on_no_progress=on_no_progress))
    look(1)
    finding = look(1, after=31, nan=True)
    assert finding is not None
    assert (finding.kind, finding.act) == ("stalled", act)
    other = look(1, after=1, nan=True)
    assert other is not None
    assert (other.kind, other.act) == ("nan", False)


def test_a_program_that_reports_no_steps_is_left_alone() -> None:
    look = Look()
    look(None)
    assert look(None, after=100_000) is None


def test_with_a_limit_a_program_without_steps_is_judged_by_its_log() -> None:
    look = Look(ProgressLimits(no_progress_seconds=60))
    look(None, log_lines=1)
    for line in range(2, 10):
        assert look(None, after=50, log_lines=line) is None
    finding = look(None, after=60, log_lines=9)
    assert finding is not None
    assert finding.reason == "learner 1 has reported no step and written no log line for 60 s"
    assert look(None, after=1, log_lines=10) == ProgressFinding("resumed", 1, "learner 1 goes on")


def test_storing_is_no_stall_and_no_pause() -> None:
    look = Look(ProgressLimits(no_progress_seconds=60))
    look.steps(range(5), each=1)
    assert look(4, after=10_000, phase="storing") is None
    assert look(4, after=10_000, phase="storing") is None
    assert look(4, after=59) is None
    assert look(4, after=1) is not None


def test_an_old_status_is_no_witness() -> None:
    """The sidecar, or the store, is away: the program may be well."""
    look = Look(ProgressLimits(no_progress_seconds=30))
    look(1)
    old = ProgressReport(1, 1, "running", False, look.now)
    for later in (31.0, 300.0, 3000.0):
        look.watch, finding = observe(look.watch, old, look.now + later, look.limits)
        assert finding is None
    look.now += 3000
    assert look(500) is None


def test_a_loss_that_is_not_a_number_is_told_once() -> None:
    look = Look()
    assert look(1, nan=True) == ProgressFinding("nan", 1, "learner 1 reports a loss that is not a number")
    assert look(2, after=1, nan=True) is None
    assert look(3, after=1, loss=0.5) == ProgressFinding("resumed", 1, "learner 1 reports a loss of 0.5 again")


def test_a_loss_that_leaves_its_best_far_behind_and_stays_there_diverges() -> None:
    look = Look()
    for step in range(30):
        assert look(step, after=1, loss=1.0) is None
    for step in range(30, 49):
        assert look(step, after=1, loss=11.0) is None
    finding = look(49, after=1, loss=11.0)
    assert finding == ProgressFinding("diverging", 1, "learner 1 reports a loss of 11, and its best was 1")
    assert look(50, after=1, loss=1.0) == ProgressFinding("resumed", 1, "learner 1 reports a loss of 1 again")


def test_a_spike_or_the_first_values_are_no_divergence() -> None:
    look = Look()
    for step, loss in enumerate([0.01, 50.0, 40.0, 30.0, *[20.0] * 60]):  # one lucky first value is no best
        assert look(step, after=1, loss=loss) is None
    for step in range(100, 140):
        assert look(step, after=1, loss=1e6 if step % 10 == 0 else 15.0) is None


def test_one_status_that_is_read_many_times_counts_once() -> None:
    look = Look()
    for step in range(10):
        look(step, after=1, loss=1.0)
    for _ in range(50):
        assert look(10, after=1, loss=100.0) is None


def test_a_learner_far_behind_the_others_for_long_is_a_straggler() -> None:
    look = Look()
    for tick in range(13):
        assert look(100 + tick, learner=2, after=5) is None
        assert look(100 + tick, learner=3) is None
        finding = look(80, learner=1, after=5)
    assert finding == ProgressFinding("straggler", 1, "learner 1 is at step 80, far behind the others, for 120 s")
    assert look(112, learner=1, after=1) == ProgressFinding("resumed", 1, "learner 1 has caught up: step 112")


def test_a_little_behind_or_without_news_of_the_others_is_no_straggler() -> None:
    look = Look()
    for tick in range(40):
        look(100 + tick, learner=2, after=5)
        assert look(95 + tick, learner=1, after=5) is None
    for step in range(200, 240):  # learner 2 reports nothing any more
        assert look(step - 180, learner=1, after=30) is None


def test_only_those_that_report_steps_are_compared() -> None:
    look = Look()
    for tick in range(40):
        look(100 + tick, learner=1, after=5)
        assert look(None, learner=2, after=5) is None


looks = st.tuples(
    st.integers(1, 3),  # learner
    st.none() | st.integers(0, 400),  # step
    st.sampled_from(["running", "storing", "done"]),
    st.booleans(),  # nan
    st.floats(0, 2000),  # seconds since the last look
    st.integers(0, 5),  # log lines
    st.none() | st.floats(0, 1e9),  # loss
)


@given(
    st.lists(looks, max_size=60),
    st.none() | st.floats(1, 5000),
    st.sampled_from(["warn", "restart", "stop"]),
)
def test_findings_open_and_close_in_turn_and_only_a_stall_acts(
    rows: list[Any], seconds: float | None, on_no_progress: Any
) -> None:
    look = Look(ProgressLimits(seconds, on_no_progress))
    for learner, step, phase, nan, after, lines, loss in rows:
        before = look.watch
        look(step, learner=learner, after=after, phase=phase, nan=nan, log_lines=lines, loss=loss)
        assert before is not look.watch
    open_kinds: dict[int, int] = {}
    for finding in look.found:
        assert finding.act == (finding.kind == "stalled" and on_no_progress != "warn")
        change = -1 if finding.kind == "resumed" else 1
        open_kinds[finding.learner] = open_kinds.get(finding.learner, 0) + change
        assert 0 <= open_kinds[finding.learner] <= 4
