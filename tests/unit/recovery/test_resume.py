"""Which checkpoint an attempt goes on from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updraft.recovery.outcome import FailureClass
from updraft.recovery.resume import ResumeCandidate, ResumePlan, Tried, plan_resume

START = datetime(2026, 1, 1, tzinfo=UTC)


def stored(step: int, attempt: int = 1, name: str | None = None) -> ResumeCandidate:
    return ResumeCandidate(name or f"s{step}", step, attempt, START + timedelta(seconds=step + 1000 * attempt))


def lost(
    attempt: int,
    resumed_from: str | None = None,
    *,
    new: bool = False,
    cause: FailureClass = FailureClass.INFRASTRUCTURE,
) -> Tried:
    return Tried(attempt, resumed_from, new, cause)


def test_the_newest_is_taken_and_what_is_repeated_is_said() -> None:
    plan = plan_resume([stored(10), stored(20)], [lost(1, new=True)], last_step=27)
    assert plan == ResumePlan("s20", 20, 7, "from checkpoint s20 (step 20, attempt 1); 7 steps repeated")


def test_without_a_checkpoint_it_begins_again() -> None:
    assert plan_resume([], [lost(1)], last_step=12) == ResumePlan(
        None, None, 12, "from the beginning: no checkpoint is stored; steps up to 12 are repeated"
    )
    assert plan_resume([], [], last_step=None) == ResumePlan(
        None, None, None, "from the beginning: no checkpoint is stored"
    )


def test_among_equal_steps_the_newer_attempt_and_then_the_later_one_is_taken() -> None:
    same = [stored(0, 1, "a"), stored(0, 2, "b"), ResumeCandidate("c", 0, 2, START)]
    assert plan_resume(same, [], last_step=None).checkpoint == "b"


def test_one_from_which_the_program_failed_twice_without_storing_another_is_passed_over() -> None:
    failed = [lost(1, new=True), lost(2, "s20", cause=FailureClass.PROGRAM), lost(3, "s20", cause=FailureClass.PROGRAM)]
    plan = plan_resume([stored(10), stored(20)], failed, last_step=21)
    assert (plan.checkpoint, plan.repeats) == ("s10", 11)
    assert plan.reason == (
        "from checkpoint s10 (step 10, attempt 1), passing over s20: 2 attempts from it failed before they stored "
        "another; 11 steps repeated"
    )
    assert plan_resume([stored(10), stored(20)], failed[:2], last_step=21).checkpoint == "s20"


@pytest.mark.parametrize("cause", [FailureClass.INFRASTRUCTURE, FailureClass.PREEMPTED, FailureClass.HALTED])
def test_lost_nodes_say_nothing_about_a_checkpoint(cause: FailureClass) -> None:
    tried = [lost(number, "s20", cause=cause) for number in range(2, 9)]
    assert plan_resume([stored(10), stored(20)], tried, last_step=20).checkpoint == "s20"


def test_an_attempt_that_stored_something_does_not_blame_what_it_came_from() -> None:
    tried = [lost(number, "s10", new=True, cause=FailureClass.PROGRAM) for number in (2, 3, 4)]
    assert plan_resume([stored(10)], tried, last_step=11).checkpoint == "s10"


def test_older_passes_over_what_the_last_attempt_went_on_from() -> None:
    tried = [lost(1, new=True), lost(2, "s20")]
    assert plan_resume([stored(10), stored(20)], tried, last_step=25, older=True).checkpoint == "s10"


def test_older_passes_over_the_newest_that_the_last_attempt_stored_itself() -> None:
    tried = [lost(1, new=True), lost(2, "s20", new=True, cause=FailureClass.PROGRAM)]
    plan = plan_resume([stored(10), stored(20), stored(30, 2)], tried, last_step=33, older=True)
    assert (plan.checkpoint, plan.repeats) == ("s20", 13)


def test_older_takes_the_next_one_when_the_damaged_one_is_quarantined_already() -> None:
    assert plan_resume([stored(10)], [lost(1, new=True), lost(2, "s20")], last_step=20, older=True).checkpoint == "s10"


def test_what_was_passed_over_once_stays_passed_over() -> None:
    """Attempt 3 went back from 30 to 20 because 30 held a diverged model; losing its node must not bring 30 back."""
    checkpoints = [stored(20), stored(30, 2)]
    tried = [lost(1, new=True), lost(2, "s20", new=True, cause=FailureClass.PROGRAM), lost(3, "s20")]
    assert plan_resume(checkpoints, tried, last_step=33).checkpoint == "s20"
    assert plan_resume([*checkpoints, stored(25, 3)], tried, last_step=33).checkpoint == "s25"


def test_when_all_are_refused_it_begins_again_and_says_why() -> None:
    tried = [lost(1, "s10", cause=FailureClass.PROGRAM), lost(2, "s10", cause=FailureClass.PROGRAM)]
    plan = plan_resume([stored(10, 0)], tried, last_step=None)
    assert plan.checkpoint is None
    assert plan.reason.startswith("from the beginning: every checkpoint is refused (s10: 2 attempts from it failed")


names = st.sampled_from(["a", "b", "c", "d", "e"])
checkpoints = st.lists(
    st.builds(lambda n, step, attempt: stored(step, attempt, n), names, st.integers(0, 50), st.integers(1, 5)),
    unique_by=lambda s: s.name,
    max_size=5,
)
histories = st.lists(
    st.builds(Tried, st.integers(1, 9), st.none() | names, st.booleans(), st.sampled_from(list(FailureClass))),
    unique_by=lambda t: t.attempt,
    max_size=8,
)


@given(checkpoints, histories, st.none() | st.integers(0, 60), st.integers(1, 3), st.booleans())
def test_only_a_checkpoint_that_is_there_and_not_refused_is_ever_taken(
    there: list[ResumeCandidate], tried: list[Tried], last_step: int | None, tries: int, older: bool
) -> None:
    plan = plan_resume(there, tried, last_step=last_step, tries_per_checkpoint=tries, older=older)
    assert plan == plan_resume(there[::-1], tried[::-1], last_step=last_step, tries_per_checkpoint=tries, older=older)
    assert plan.reason
    assert plan.repeats is None or plan.repeats >= 0
    if plan.checkpoint is None:
        return
    taken = next(s for s in there if s.name == plan.checkpoint)
    assert plan.step == taken.step
    failures = [
        t for t in tried if t.resumed_from == taken.name and not t.stored_new and t.cause is FailureClass.PROGRAM
    ]
    assert len(failures) < tries
    if older and tried:
        assert taken.name != max(tried, key=lambda t: t.attempt).resumed_from or any(
            s.attempt == max(t.attempt for t in tried) for s in there
        )


@given(checkpoints, histories)
def test_a_quarantined_checkpoint_never_comes_back(there: list[ResumeCandidate], tried: list[Tried]) -> None:
    """It is not among the stored ones any more; whatever was tried from it, something else is taken."""
    plan = plan_resume(there, tried, last_step=None)
    if plan.checkpoint is not None:
        rest = [s for s in there if s.name != plan.checkpoint]
        assert plan_resume(rest, tried, last_step=None).checkpoint != plan.checkpoint
