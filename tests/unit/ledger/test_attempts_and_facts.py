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
    assert [ledger.open_attempt("a", role) for role in ("train", "train", "evaluate", "train")] == [1, 2, 3, 4]
    assert ledger.open_attempt("b", "train") == 1
    assert ledger.current_attempt("a", "evaluate") is not None
    assert ledger.current_attempt("b", "export") is None


def test_an_older_attempt_cannot_end_a_newer_one(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    started = clock.now
    first = ledger.open_attempt("job-1", "train")
    second = ledger.open_attempt("job-1", "train")
    with pytest.raises(StaleAttemptError, match=r"1 of role 'train' of job-1 is not the newest \(2 is\)"):
        ledger.close_attempt("job-1", "train", first, "failed", "late news")
    closed = ledger.close_attempt("job-1", "train", second, "succeeded", "done", {"exit_codes": [0, 0]})
    assert ledger.attempts("job-1") == [
        Attempt("job-1", "train", 1, started, started, "superseded", "attempt 2 was started"),
        Attempt("job-1", "train", 2, started, clock.now, "succeeded", "done", {"exit_codes": [0, 0]}),
    ]
    assert ledger.close_attempt("job-1", "train", second, "failed", "again") == closed
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
