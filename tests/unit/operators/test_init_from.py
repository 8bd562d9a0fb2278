"""A training begins with another job's checkpoint: which one, that it is recorded once, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from unit.operators.airflow_fakes import Platform

from updraft.controller.init_from import InitFrom, recorded
from updraft.ledger import NewJob
from updraft.lifecycle import State

Make = Callable[..., Platform]
AT = datetime(2026, 1, 1, tzinfo=UTC)


def other_job(platform: Platform, job_id: str = "words-1", tenant: str = "default", checkpoints: int = 2) -> None:
    platform.ledger.jobs.record(NewJob(job_id, tenant, "words", "train_model", job_id, {"name": "words"}, "ada"))
    for step in range(1, checkpoints + 1):
        platform.ledger.attempts.ensure(job_id, "train", after=None)
        facts = {"step": step, "attempt": 1, "metrics": {}, "bytes": 10, "uri": "s3://x", "created_at": AT}
        platform.ledger.checkpoints.record(job_id, name=f"step-{step}-a1", **facts)


def begun(platform: Platform) -> InitFrom | None:
    return recorded(platform.services, platform.job.id)


def test_the_newest_checkpoint_of_a_job_is_taken(make_platform: Make) -> None:
    platform = make_platform(init_from="words-1")
    other_job(platform)
    platform.run_all()
    assert platform.job.state is State.COMPLETED, platform.errors
    assert begun(platform) == InitFrom("step-2-a1 of job words-1", "words-1", "step-2-a1")
    run = platform.mlflow.runs[platform.job.mlflow_run_id]
    assert run.data.tags["updraft.init_from"] == "step-2-a1 of job words-1"


def test_a_named_checkpoint_is_taken(make_platform: Make) -> None:
    platform = make_platform(init_from="words-1/step-1-a1")
    other_job(platform)
    platform.run_all()
    assert begun(platform) == InitFrom("step-1-a1 of job words-1", "words-1", "step-1-a1")


def test_the_first_job_of_a_series_begins_from_scratch_and_the_next_with_the_champion(make_platform: Make) -> None:
    first = make_platform(init_from="champion")
    first.run_all()
    assert begun(first) == InitFrom("digits has no champion yet: the training begins from scratch")
    first.run_id, first.states = "digits-2", {}
    first.run_all()
    assert first.job.state is State.COMPLETED, first.errors
    found = begun(first)
    assert found is not None
    assert (found.job, found.reason) == ("digits-1", f"{found.checkpoint} of the champion, version 1 of digits")


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("nobody-1", "init_from: job 'nobody-1' does not exist"),
        ("theirs-1", "init_from: job 'theirs-1' does not exist"),
        ("words-1/step-9", "init_from: job words-1 has no checkpoint step-9; it has: step-1-a1, step-2-a1"),
        ("empty-1", "init_from: job empty-1 has no checkpoint at all; it has: none"),
    ],
)
def test_what_cannot_be_begun_with_is_refused_by_name(make_platform: Make, wanted: str, words: str) -> None:
    platform = make_platform(init_from=wanted)
    other_job(platform)
    other_job(platform, "theirs-1", tenant="vision")
    other_job(platform, "empty-1", checkpoints=0)
    platform.run_all()
    assert platform.job.state is State.FAILED
    assert words in platform.job.reason
