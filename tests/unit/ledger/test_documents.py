"""Records that the ledger keeps as JSON: what is stored is read again, by later versions too."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from updraft.exceptions import LimitError, RefusedError
from updraft.ledger import documents
from updraft.recovery.policy import PlannedRelaunch
from updraft.recovery.resume import ResumePlan

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
RELAUNCH = PlannedRelaunch(NOON, 5.0, "infrastructure loss 1 of 5", ("n1", "n2"), older_checkpoint=True)
RESUME = ResumePlan("step-4", 4, None, "the newest")


def test_what_is_written_is_read() -> None:
    for record in (RELAUNCH, RESUME):
        assert documents.read(type(record), documents.written("x", record)) == record
    assert documents.written("x", None) is documents.read(ResumePlan, None) is None


def test_rows_of_earlier_versions_are_read() -> None:
    relaunch = {
        "delay_seconds": 5.0,
        "reason": "infrastructure loss 1 of 5",
        "avoid_nodes": ["n1", "n2"],
        "older_checkpoint": True,
        "not_before": "2026-01-01T12:00:00+00:00",
    }
    assert documents.read(PlannedRelaunch, relaunch) == RELAUNCH
    resume = {"checkpoint": "step-4", "step": 4, "repeats": None, "reason": "the newest"}
    assert documents.read(ResumePlan, resume) == RESUME
    assert documents.read(ResumePlan, {**resume, "of a later version": 1}) == RESUME


def test_what_is_no_such_record_is_refused_by_name() -> None:
    with pytest.raises(RefusedError, match="a stored ResumePlan cannot be read: "):
        documents.read(ResumePlan, {"checkpoint": 7})


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(LimitError, match=r"resume: \d+ bytes of JSON"):
        documents.written("resume", ResumePlan(None, None, None, "x" * 10_000_000))
