from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pytest

from updraft.exceptions import NotFoundError, RefusedError
from updraft.ledger import Checkpoint, Job, Ledger, Validation
from updraft.lifecycle.idempotency import IdempotencyKey

Submit = Callable[..., Job]


def test_checkpoints_are_recorded_once_and_keep_nan(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    facts: dict[str, Any] = {"attempt": 1, "bytes": 2**40, "uri": "s3://updraft/default/jobs/job-1/checkpoints/"}
    ledger.checkpoints.record("job-1", "step-20", step=20, metrics={"loss": float("nan")}, verified=False, **facts)
    first = ledger.checkpoints.record("job-1", "step-10", step=10, metrics={"loss": 0.5}, **facts)
    assert first == Checkpoint("job-1", "step-10", 10, 1, {"loss": 0.5}, 2**40, facts["uri"], clock.now, clock.now)
    clock.forward(1)
    assert ledger.checkpoints.record("job-1", "step-10", step=11, metrics={}, **facts) == first
    late = ledger.checkpoints.record("job-1", "step-20", step=20, metrics={}, **facts)
    assert late.verified_at == clock.now
    assert math.isnan(late.metrics["loss"])
    assert [c.name for c in ledger.checkpoints.of_job("job-1")] == ["step-10", "step-20"]


def test_deleted_checkpoints_stay_as_history(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    ledger.checkpoints.record("job-1", "s1", step=1, attempt=1, metrics={}, bytes=1, uri="s3://x")
    gone = ledger.checkpoints.mark_deleted("job-1", "s1", "older than the latest 3")
    assert (gone.deleted_at, gone.delete_reason) == (clock.now, "older than the latest 3")
    assert ledger.checkpoints.mark_deleted("job-1", "s1", "again") == gone
    assert ledger.checkpoints.of_job("job-1") == []
    assert ledger.checkpoints.of_job("job-1", with_deleted=True) == [gone]
    with pytest.raises(NotFoundError):
        ledger.checkpoints.mark_deleted("job-1", "s2", "x")


def test_a_validation_belongs_to_data_and_suite(ledger: Ledger, clock: Any) -> None:
    expected = Validation("default", "f" * 64, "s" * 64, False, {"failed": ["too many"]}, clock.now)
    stored = ledger.validations.record("default", "f" * 64, "s" * 64, success=False, result={"failed": ["too many"]})
    assert stored == expected
    assert ledger.validations.record("default", "f" * 64, "s" * 64, success=True, result={}) == expected
    assert ledger.validations.get("default", "f" * 64, "s" * 64) == expected
    assert ledger.validations.get("default", "f" * 64, "t" * 64) is None
    assert ledger.validations.get("other", "f" * 64, "s" * 64) is None


@dataclass(frozen=True)
class Version:
    name: str
    at: datetime
    formats: tuple[str, ...] = ()


REGISTERED = IdempotencyKey("register", Version)


def test_the_first_idempotency_record_stands(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    first = Version("3", clock.now, ("onnx",))
    assert ledger.idempotency.get("job-1", REGISTERED) is None
    assert ledger.idempotency.record("job-1", REGISTERED, first) == first
    assert ledger.idempotency.record("job-1", REGISTERED, replace(first, name="4")) == first
    assert ledger.idempotency.get("job-1", REGISTERED) == first
    with pytest.raises(RefusedError, match="a stored int cannot be read"):
        ledger.idempotency.get("job-1", IdempotencyKey("register", int))
