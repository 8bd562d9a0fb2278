"""What people may ask of a job in which state, and that exactly one thing stands unanswered of each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from updraft.exceptions import NotFoundError, RefusedError
from updraft.ledger import Job, Ledger, NewJob, Request, RequestKind
from updraft.ledger.clock import utc_now
from updraft.ledger.records import Transition
from updraft.lifecycle import State, Verdict

Submit = Callable[..., Job]
CHANGES = {"manifest": {"name": "digits"}, "changes": {"command": "python train.py --lr 0.1"}}


def halted(ledger: Ledger, submit: Submit) -> None:
    submit()
    ledger.jobs.move("job-1", State.HALTED, "halted by ada")


def test_a_request_is_kept_until_it_is_answered(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    asked = ledger.requests.make("job-1", "halt", "ada")
    assert asked == Request("job-1", 1, "halt", "ada", clock.now)
    clock.forward(5)
    assert ledger.requests.make("job-1", "halt", "bob") == asked
    assert ledger.requests.pending("job-1", "halt") == asked
    assert ledger.requests.pending("job-1", "resume") is None
    answered = ledger.requests.answer("job-1", 1, "halted; the last checkpoint is step-4")
    assert answered == Request(
        "job-1",
        1,
        "halt",
        "ada",
        asked.at,
        answered_at=clock.now,
        answer="halted; the last checkpoint is step-4",
    )
    clock.forward(5)
    assert ledger.requests.answer("job-1", 1, "another word") == answered
    assert ledger.requests.pending("job-1", "halt") is None
    assert ledger.requests.make("job-1", "halt", "bob").seq == 2
    assert [r.seq for r in ledger.requests.of_job("job-1")] == [1, 2]
    with pytest.raises(NotFoundError, match="job-1 has no request 9"):
        ledger.requests.answer("job-1", 9, "?")


@pytest.mark.parametrize("state", [State.PENDING, State.QUEUED, State.PROCESSING, State.STORING])
def test_a_job_can_be_asked_to_halt_before_and_while_it_runs(ledger: Ledger, submit: Submit, state: State) -> None:
    submit()
    for step in (State.QUEUED, State.DEPLOYING, State.PROCESSING, State.STORING):
        if ledger.jobs.get("job-1").state is not state:
            ledger.jobs.move("job-1", step, "on")
    assert ledger.requests.make("job-1", "halt", "ada").answered_at is None


def test_what_cannot_be_is_refused_with_advice(ledger: Ledger, submit: Submit) -> None:
    halted(ledger, submit)
    with pytest.raises(RefusedError, match="is halted already; resume it or cancel it"):
        ledger.requests.make("job-1", "halt", "ada")
    submit("job-2")
    with pytest.raises(RefusedError, match="is PENDING, not halted; halt it first"):
        ledger.requests.make("job-2", "resume", "ada")
    ledger.requests.make("job-2", "cancel", "ada")
    with pytest.raises(RefusedError, match="was cancelled by ada; submit it again"):
        ledger.requests.make("job-2", "halt", "bob")
    ledger.jobs.finish("job-2", Verdict(State.CANCELLED, "cancelled by ada"))
    for kind in ("halt", "resume"):
        with pytest.raises(RefusedError, match="has ended CANCELLED; an end has no exit, submit it again"):
            ledger.requests.make("job-2", kind, "ada")  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="'stop' is none of halt, resume, cancel"):
        ledger.requests.make("job-1", "stop", "ada")  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="cannot come with 'halt'; give them to resume"):
        ledger.requests.make("job-1", "halt", "ada", revision=CHANGES)
    with pytest.raises(NotFoundError):
        ledger.requests.make("nobody", "cancel", "ada")


def test_resume_and_halt_withdraw_each_other(ledger: Ledger, submit: Submit) -> None:
    submit()
    ledger.requests.make("job-1", "halt", "ada")
    assert ledger.requests.make("job-1", "resume", "bob").answered_at is None  # the controller may have begun to halt
    assert ledger.requests.pending("job-1", "halt") is None
    ledger.requests.make("job-1", "halt", "eve")
    assert [(r.kind, r.answer) for r in ledger.requests.of_job("job-1")] == [
        ("halt", "withdrawn: bob asked to resume"),
        ("resume", "withdrawn: eve asked to halt"),
        ("halt", None),
    ]


def test_a_halted_job_about_to_resume_can_be_told_to_stay(ledger: Ledger, submit: Submit) -> None:
    halted(ledger, submit)
    ledger.requests.make("job-1", "resume", "bob")
    ledger.requests.make("job-1", "halt", "eve")
    assert ledger.requests.pending("job-1", "resume") is None
    ledger.requests.make("job-1", "resume", "bob")
    assert [(r.kind, r.answer is None) for r in ledger.requests.of_job("job-1")][-2:] == [
        ("halt", False),
        ("resume", True),
    ]


def test_changes_wait_for_the_halt_that_they_need(ledger: Ledger, submit: Submit) -> None:
    submit()
    ledger.requests.make("job-1", "halt", "ada")
    asked = ledger.requests.make("job-1", "resume", "ada", revision=CHANGES)
    assert asked.revision == CHANGES
    assert ledger.requests.pending("job-1", "halt") is not None
    assert ledger.requests.make("job-1", "resume", "bob", revision=CHANGES) == asked
    with pytest.raises(RefusedError, match="was asked to resume by ada already"):
        ledger.requests.make("job-1", "resume", "bob", revision={"changes": {"command": "other"}})


def test_a_cancel_is_asked_once_for_good(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    asked = ledger.requests.make("job-1", "cancel", "ada")
    ledger.requests.answer("job-1", asked.seq, "the learners stop")
    clock.forward(5)
    assert ledger.requests.make("job-1", "cancel", "bob") == ledger.requests.of_job("job-1")[0]
    job = ledger.jobs.get("job-1")
    assert (job.cancel_requested_at, job.cancel_requested_by) == (asked.at, "ada")


def test_an_ended_job_is_not_cancelled_and_says_so(ledger: Ledger, submit: Submit) -> None:
    submit()
    ledger.jobs.finish("job-1", Verdict(State.FAILED, "exit code 1"))
    asked = ledger.requests.make("job-1", "cancel", "ada")
    assert asked.answer == "the job has ended FAILED already"
    assert ledger.requests.make("job-1", "cancel", "ada") == asked
    assert ledger.jobs.get("job-1").cancel_requested_at is None


def test_the_end_answers_what_nobody_has_answered(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    ledger.requests.make("job-1", "halt", "ada")
    ledger.requests.answer("job-1", 1, "not while it stores")
    ledger.requests.make("job-1", "cancel", "bob")
    clock.forward(9)
    ledger.jobs.finish("job-1", Verdict(State.CANCELLED, "cancelled by bob"))
    first, second = ledger.requests.of_job("job-1")
    assert first.answer == "not while it stores"
    assert (second.answer, second.answered_at) == ("the job has ended CANCELLED: cancelled by bob", clock.now)


STEPS = st.lists(st.sampled_from(["halt", "resume", "cancel", "answer", "halted", "running"]), max_size=14)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_whatever_is_asked_one_request_of_a_kind_waits(new_ledger: Callable[[Any], Ledger], steps: list[str]) -> None:
    ledger = new_ledger(utc_now)
    ledger.jobs.record(NewJob("job-1", "t", "n", "d", "job-1", {}, "ada"))
    for step in steps:
        take(ledger, step)
        waiting = [r.kind for r in ledger.requests.of_job("job-1") if r.answered_at is None]
        assert len(waiting) == len(set(waiting))
        assert not {"halt", "resume"} <= set(waiting)  # none of these came with changes
        asked = [r for r in ledger.requests.of_job("job-1") if r.kind == "cancel"]
        assert len(asked) <= 1
        assert bool(asked) == (ledger.jobs.get("job-1").cancel_requested_at is not None)


def take(ledger: Ledger, step: str) -> Request | Transition | Job | None:
    """One step of a person or of the controller, or the refusal."""
    kinds: dict[str, RequestKind] = {"halt": "halt", "resume": "resume", "cancel": "cancel"}
    try:
        if step in kinds:
            return ledger.requests.make("job-1", kinds[step], "ada")
        if step == "answer":
            waiting = [r for r in ledger.requests.of_job("job-1") if r.answered_at is None]
            return ledger.requests.answer("job-1", waiting[0].seq, "done") if waiting else None
        state = State.HALTED if step == "halted" else State.QUEUED
        return ledger.jobs.move("job-1", state, step)
    except RefusedError:
        return None
