from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from updraft.exceptions import NotFoundError, StaleAttemptError
from updraft.ledger import Attempt, Checkpoint, Job, Ledger, Validation

Submit = Callable[..., Job]


def test_numbers_rise_over_all_roles_of_a_job(ledger: Ledger, submit: Submit) -> None:
    submit("a")
    submit("b")
    assert ledger.ensure_attempt("a", "train", after=None).number == 1
    ledger.close_attempt("a", "train", 1, "infrastructure", "the node was lost")
    numbers = [ledger.ensure_attempt("a", role, after=n).number for role, n in (("train", 1), ("evaluate", None))]
    assert numbers == [2, 3]
    assert ledger.ensure_attempt("b", "train", after=None).number == 1
    assert ledger.current_attempt("a", "evaluate") is not None
    assert ledger.current_attempt("b", "export") is None


def test_an_older_attempt_cannot_end_a_newer_one(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    started = clock.now
    ledger.ensure_attempt("job-1", "train", after=None)
    clock.forward(60)
    relaunch = {"delay_seconds": 0.0, "reason": "infrastructure loss 1 of 5", "avoid_nodes": ["n1"]}
    lost = ledger.close_attempt(
        "job-1", "train", 1, "infrastructure", "the node was lost", {"n": 1}, label="node.lost", relaunch=relaunch
    )
    resume = {"checkpoint": "step-4", "step": 4, "repeats": 2, "reason": "the newest"}
    assert ledger.ensure_attempt("job-1", "train", after=1, resume=resume) == Attempt(
        "job-1", "train", 2, clock.now, resume=resume
    )
    with pytest.raises(StaleAttemptError, match=r"1 of role 'train' of job-1 is not the newest \(2 is\)"):
        ledger.close_attempt("job-1", "train", 1, "failed", "late news")
    closed = ledger.close_attempt("job-1", "train", 2, "done", "all left with 0", {"exit_codes": [0, 0]})
    first = Attempt(
        job_id="job-1",
        role="train",
        number=1,
        started_at=started,
        ended_at=clock.now,
        outcome="infrastructure",
        reason="the node was lost",
        evidence={"n": 1},
        label="node.lost",
        relaunch=relaunch,
    )
    assert lost == first
    assert ledger.attempts("job-1") == [first, closed]
    assert ledger.close_attempt("job-1", "train", 2, "failed", "again", label="x") == closed
    with pytest.raises(NotFoundError, match="no attempt 9"):
        ledger.close_attempt("job-1", "train", 9, "failed", "?")


def test_checkpoints_are_recorded_once_and_keep_nan(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    facts: dict[str, Any] = {"attempt": 1, "bytes": 2**40, "uri": "s3://updraft/default/jobs/job-1/checkpoints/"}
    ledger.record_checkpoint("job-1", "step-20", step=20, metrics={"loss": float("nan")}, verified=False, **facts)
    first = ledger.record_checkpoint("job-1", "step-10", step=10, metrics={"loss": 0.5}, **facts)
    assert first == Checkpoint("job-1", "step-10", 10, 1, {"loss": 0.5}, 2**40, facts["uri"], clock.now, clock.now)
    clock.forward(1)
    assert ledger.record_checkpoint("job-1", "step-10", step=11, metrics={}, **facts) == first
    late = ledger.record_checkpoint("job-1", "step-20", step=20, metrics={}, **facts)
    assert late.verified_at == clock.now
    assert math.isnan(late.metrics["loss"])
    assert [c.name for c in ledger.checkpoints("job-1")] == ["step-10", "step-20"]


def test_deleted_checkpoints_stay_as_history(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    ledger.record_checkpoint("job-1", "s1", step=1, attempt=1, metrics={}, bytes=1, uri="s3://x")
    gone = ledger.mark_checkpoint_deleted("job-1", "s1", "older than the latest 3")
    assert (gone.deleted_at, gone.delete_reason) == (clock.now, "older than the latest 3")
    assert ledger.mark_checkpoint_deleted("job-1", "s1", "again") == gone
    assert ledger.checkpoints("job-1") == []
    assert ledger.checkpoints("job-1", with_deleted=True) == [gone]
    with pytest.raises(NotFoundError):
        ledger.mark_checkpoint_deleted("job-1", "s2", "x")


def test_a_validation_belongs_to_data_and_suite(ledger: Ledger, clock: Any) -> None:
    expected = Validation("default", "f" * 64, "s" * 64, False, {"failed": ["too many"]}, clock.now)
    stored = ledger.record_validation("default", "f" * 64, "s" * 64, success=False, result={"failed": ["too many"]})
    assert stored == expected
    assert ledger.record_validation("default", "f" * 64, "s" * 64, success=True, result={}) == expected
    assert ledger.validation("default", "f" * 64, "s" * 64) == expected
    assert ledger.validation("default", "f" * 64, "t" * 64) is None
    assert ledger.validation("other", "f" * 64, "s" * 64) is None


def test_an_effect_happens_once(ledger: Ledger, submit: Submit) -> None:
    submit()
    assert ledger.effect("job-1", "register") is None
    assert ledger.record_effect("job-1", "register", {"version": "3"}) == {"version": "3"}
    assert ledger.record_effect("job-1", "register", {"version": "4"}) == {"version": "3"}
    assert ledger.effect("job-1", "register") == {"version": "3"}
    with pytest.raises(ValueError, match="None means"):
        ledger.record_effect("job-1", "promote", None)
