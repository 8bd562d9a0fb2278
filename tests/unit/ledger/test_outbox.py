"""Messages to MLflow are written with what they tell, and not without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from updraft.exceptions import IllegalTransitionError, NotFoundError
from updraft.ledger import Job, Ledger, Message, requests
from updraft.lifecycle import State, Verdict

Submit = Callable[..., Job]
HALTED = {"state": "HALTED", "tags": {"updraft.halted_by": "ada"}}


def test_a_move_tells_what_it_was_given(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    ledger.jobs.move("job-1", State.QUEUED, "waits")
    ledger.jobs.move("job-1", State.HALTED, "halted by ada", tell=HALTED)
    ledger.jobs.move("job-1", State.HALTED, "halted by ada", tell=HALTED)  # a twin: nothing moves, nothing is told
    ledger.jobs.move("job-1", State.QUEUED, "resumed", tell={"tags": {"updraft.revision": 1}})
    assert ledger.outbox.undelivered("job-1") == [
        Message(1, "job-1", State.HALTED, {"updraft.halted_by": "ada"}, clock.now),
        Message(2, "job-1", State.QUEUED, {"updraft.revision": "1"}, clock.now),
    ]


def test_the_end_is_told_once_with_its_verdict(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    ledger.jobs.finish("job-1", Verdict(State.FAILED, "exit code 1"))
    ledger.jobs.finish("job-1", Verdict(State.CANCELLED, "too late"))
    tags = {"updraft.verdict": "FAILED", "updraft.reason": "exit code 1"}
    assert ledger.outbox.undelivered() == [Message(1, "job-1", State.FAILED, tags, clock.now)]


def test_what_fails_tells_nothing(ledger: Ledger, submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    submit()
    ledger.requests.make("job-1", "halt", "ada")
    with pytest.raises(IllegalTransitionError):
        ledger.jobs.move("job-1", State.STORING, "too early", tell={"state": "STORING", "tags": {}})
    with pytest.raises(ValueError, match="SLEEPING"):
        ledger.jobs.move("job-1", State.QUEUED, "waits", tell={"state": "SLEEPING"})

    def breaks(*args: object) -> None:
        raise OSError("the disk is full")

    before = ledger.jobs.get("job-1")
    with monkeypatch.context() as patch:
        patch.setattr(requests, "answer_all", breaks)  # the last write of an end
        with pytest.raises(OSError, match="disk is full"):
            ledger.jobs.finish("job-1", Verdict(State.FAILED, "exit code 1"))
    assert ledger.jobs.get("job-1") == before
    assert ledger.outbox.undelivered() == []
    assert len(ledger.jobs.transitions("job-1")) == 1
    assert ledger.requests.pending("job-1", "halt") is not None


def test_messages_wait_in_order_until_delivered(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    ledger.jobs.move("job-1", State.HALTED, "halted", tell=HALTED)
    ledger.jobs.finish("job-1", Verdict(State.CANCELLED, "cancelled by ada"))
    first, second = ledger.outbox.undelivered("job-1")
    ledger.outbox.failed(first.id, "MLflow does not answer")
    ledger.outbox.failed(first.id, "MLflow answers 503")
    assert ledger.outbox.undelivered("job-1") == [
        Message(1, "job-1", State.HALTED, HALTED["tags"], clock.now, 2, "MLflow answers 503"),  # type: ignore[arg-type]
        second,
    ]
    ledger.outbox.delivered(first.id)
    ledger.outbox.delivered(first.id)
    ledger.outbox.failed(first.id, "a slower twin failed")
    assert ledger.outbox.undelivered("job-1") == [second]
    with pytest.raises(NotFoundError, match="99 is not in the outbox"):
        ledger.outbox.delivered(99)


def test_jobs_that_cannot_be_told_keep_nobody_waiting(ledger: Ledger, submit: Submit) -> None:
    for job_id in ("bad", "good"):
        submit(job_id)
        ledger.jobs.move(job_id, State.HALTED, "halted", tell=HALTED)
        ledger.jobs.finish(job_id, Verdict(State.CANCELLED, "cancelled by ada"))
    ledger.outbox.failed(ledger.outbox.undelivered("bad")[0].id, "its run was deleted")
    assert [(m.job_id, m.state) for m in ledger.outbox.undelivered()] == [
        ("good", State.HALTED),
        ("good", State.CANCELLED),
        ("bad", State.HALTED),
        ("bad", State.CANCELLED),
    ]
    assert [m.job_id for m in ledger.outbox.undelivered(limit=3)] == ["good", "good", "bad"]
