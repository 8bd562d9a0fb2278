"""Halting and going on: one transaction each, and nothing when somebody else has gone on meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ledger_helpers import grants, try_admit

from updraft.allocation import Capacity, Node
from updraft.allocation import GangRequest as Place
from updraft.exceptions import RefusedError
from updraft.ledger import AttemptClosure, Job, Ledger, Shift
from updraft.lifecycle import State

ROOM = Capacity((Node("local", 8, 16384),))


def place(ledger: Ledger, learners: int = 1) -> Place:
    return Place("job-1", learners, 0.5, 256, 0, None, ledger.jobs.get("job-1").submitted_at)


@pytest.fixture
def running(ledger: Ledger, submit: Callable[..., Job]) -> Ledger:
    """Admitted, and its first attempt is open."""
    submit()
    ledger.queue.enqueue("job-1", place(ledger))
    ledger.jobs.move("job-1", State.QUEUED, "waiting")
    try_admit(ledger, "job-1", ROOM)
    ledger.jobs.move("job-1", State.DEPLOYING, "admitted")
    ledger.attempts.ensure("job-1", "train", after=None)
    ledger.jobs.move("job-1", State.PROCESSING, "it runs")
    return ledger


def lose(ledger: Ledger, number: int, outcome: str = "halted") -> None:
    ledger.attempts.close("job-1", "train", number, AttemptClosure(outcome, "over"))


def test_a_halted_job_holds_nothing_and_its_request_is_answered(running: Ledger) -> None:
    asked = running.requests.make("job-1", "halt", "ada")
    lose(running, 1)
    assert running.jobs.rest("job-1", "the last checkpoint is step-3", attempt=1) is True
    assert (running.jobs.get("job-1").state, grants(running)) == (State.HALTED, [])
    assert running.jobs.get("job-1").reason == "halted by ada; the last checkpoint is step-3"
    assert running.requests.of_job("job-1")[asked.seq - 1].answer == "halted; the last checkpoint is step-3"
    assert running.jobs.rest("job-1", "the last checkpoint is step-3", attempt=1) is True
    assert [m.state for m in running.outbox.undelivered("job-1")] == [State.HALTED]


def test_a_job_whose_halt_was_withdrawn_keeps_its_place(running: Ledger) -> None:
    running.requests.make("job-1", "halt", "ada")
    lose(running, 1)
    running.requests.make("job-1", "resume", "ada")
    assert running.jobs.rest("job-1", "", attempt=1) is False
    assert (running.jobs.get("job-1").state, len(grants(running))) == (State.PROCESSING, 1)


def test_a_controller_that_wakes_up_does_not_halt_what_runs_again(running: Ledger) -> None:
    running.requests.make("job-1", "halt", "ada")
    lose(running, 1)
    running.attempts.ensure("job-1", "train", after=1)  # the halt was not seen before this
    assert running.jobs.rest("job-1", "", attempt=1) is False
    assert (running.jobs.get("job-1").state, len(grants(running))) == (State.PROCESSING, 1)


@pytest.mark.parametrize("state", [State.HALTED, State.QUEUED])
def test_nothing_is_launched_without_a_place(running: Ledger, state: State) -> None:
    lose(running, 1)
    running.jobs.move("job-1", state, "a person wants it")
    with pytest.raises(RefusedError, match=f"is {state}; nothing is launched"):
        running.attempts.ensure("job-1", "train", after=1)
    assert [a.number for a in running.attempts.of_job("job-1")] == [1]


def halted(ledger: Ledger) -> None:
    ledger.requests.make("job-1", "halt", "ada")
    lose(ledger, 1)
    ledger.jobs.rest("job-1", "", attempt=1)


def test_a_resume_is_obeyed_once(running: Ledger) -> None:
    halted(running)
    changes = {"manifest": {"name": "digits", "params": {"lr": 1}}, "changes": {"params.lr": 1}}
    asked = running.requests.make("job-1", "resume", "bob", revision=changes)
    assert running.jobs.rejoin("job-1", asked.seq, place(running, 2)) is True
    assert running.jobs.rejoin("job-1", asked.seq, place(running, 2)) is False
    job = running.jobs.get("job-1")
    assert (job.state, job.revision, job.manifest) == (State.QUEUED, 1, changes["manifest"])
    assert running.requests.of_job("job-1")[-1].answer == "resumed: it is in the queue"
    try_admit(running, "job-1", ROOM)
    assert [g.request.learners for g in grants(running)] == [2]
    assert [dict(m.tags) for m in running.outbox.undelivered("job-1")][1:] == [
        {"updraft.resumed_by": "bob", "updraft.revision": "1"}
    ]


def test_a_cancelled_job_does_not_go_on(running: Ledger) -> None:
    halted(running)
    asked = running.requests.make("job-1", "resume", "bob")
    running.requests.make("job-1", "cancel", "bob")
    assert running.jobs.rejoin("job-1", asked.seq, place(running)) is False
    assert running.jobs.get("job-1").state is State.HALTED


def test_the_same_resume_again_does_not_withdraw_the_halt_that_its_changes_need(running: Ledger) -> None:
    running.requests.make("job-1", "halt", "ada")
    changes = {"manifest": {"name": "digits", "command": "x"}, "changes": {"command": "x"}}
    asked = running.requests.make("job-1", "resume", "ada", revision=changes)
    assert running.requests.make("job-1", "resume", "ada") == asked
    assert running.requests.pending("job-1", "halt") is not None


SHIFT = Shift("attempt 1 was lost", {"attempt": 1}, {"updraft.attempt": "2"})


def test_the_first_close_alone_is_shown(running: Ledger) -> None:
    for _ in range(2):
        running.attempts.close("job-1", "train", 1, AttemptClosure("infrastructure", "lost", shift=SHIFT))
        running.jobs.move("job-1", State.PROCESSING, "the next one runs")
    states = [t.to_state for t in running.jobs.transitions("job-1")]
    assert states.count(State.RECOVERING) == 1
    assert [(m.state, dict(m.tags)) for m in running.outbox.undelivered("job-1")] == [
        (State.RECOVERING, {"updraft.attempt": "2"})
    ]


def test_a_job_that_has_ended_is_not_shown_recovering(running: Ledger) -> None:
    from updraft.lifecycle import Verdict

    running.jobs.finish("job-1", Verdict(State.CANCELLED, "cancelled by ada"))
    running.attempts.close("job-1", "train", 1, AttemptClosure("infrastructure", "lost", shift=SHIFT))
    assert running.jobs.get("job-1").state is State.CANCELLED


def test_a_job_can_complete_although_nobody_saw_it_storing(running: Ledger) -> None:
    from updraft.lifecycle import Verdict

    running.jobs.move("job-1", State.RECOVERING, "lost")
    assert running.jobs.finish("job-1", Verdict(State.COMPLETED, "trained")).state is State.COMPLETED
    assert [t.to_state for t in running.jobs.transitions("job-1")][-2:] == [State.STORING, State.COMPLETED]
