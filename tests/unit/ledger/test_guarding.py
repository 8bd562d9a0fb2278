"""What the ledger keeps about who guards a job, what people changed, and what was noted on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from updraft.exceptions import NotFoundError, RefusedError
from updraft.ledger import AttemptClosure, Job, Ledger, Revision
from updraft.lifecycle import State, Verdict

Submit = Callable[..., Job]


def test_a_controller_is_seen_and_written_seldom(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    assert ledger.jobs.get("job-1").controller_seen_at is None
    seen = []
    for _ in range(25):
        ledger.jobs.touch("job-1", "train: watching")
        job = ledger.jobs.get("job-1")
        seen.append(job.controller_seen_at)
        assert job.controller_what == "train: watching"
        assert (clock.now - seen[-1]).total_seconds() < 10
        clock.forward(1)
    assert len(set(seen)) == 3
    with pytest.raises(NotFoundError):
        ledger.jobs.touch("nobody", "train: watching")


def test_two_controllers_at_once_write_once(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    ledger.jobs.touch("job-1", "train: watching")
    clock.forward(9)
    ledger.jobs.touch("job-1", "checkpoints")
    assert ledger.jobs.get("job-1").controller_what == "train: watching"


def test_live_jobs_are_those_without_an_end(ledger: Ledger, submit: Submit, clock: Any) -> None:
    for name in ("a", "b", "c", "d"):
        submit(name)
        clock.forward(1)
    ledger.jobs.move("c", State.HALTED, "halted by ada")
    for name, state in (("b", State.FAILED), ("d", State.CANCELLED)):
        ledger.jobs.finish(name, Verdict(state, "over"))
    assert [job.id for job in ledger.jobs.live()] == ["a", "c"]


def test_a_note_is_a_step_to_the_same_state(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    noted = ledger.jobs.note("job-1", "learner 2 made no step for 15 min", {"learner": 2})
    assert (noted.from_state, noted.to_state, noted.seq) == (State.PENDING, State.PENDING, 2)
    assert noted.evidence == {"learner": 2}
    clock.forward(5)
    assert ledger.jobs.note("job-1", "learner 2 made no step for 15 min") == noted
    assert ledger.jobs.get("job-1").reason == "learner 2 made no step for 15 min"
    assert len(ledger.jobs.transitions("job-1")) == 2


def test_a_note_after_the_end_leaves_the_end_alone(ledger: Ledger, submit: Submit) -> None:
    submit()
    ended = ledger.jobs.finish("job-1", Verdict(State.FAILED, "exit code 1"))
    noted = ledger.jobs.note("job-1", "reaped: a pod of an ended job", {"pod": "job-1-1"})
    assert (noted.from_state, noted.to_state) == (State.FAILED, State.FAILED)
    assert ledger.jobs.get("job-1") == ended


def test_what_a_person_made_airflow_say_stands_beside_the_verdict(ledger: Ledger, submit: Submit) -> None:
    submit()
    ended = ledger.jobs.finish("job-1", Verdict(State.FAILED, "exit code 1"))
    ledger.jobs.override("job-1", {"task": "train", "airflow": "failed", "by": "ada"})
    job = ledger.jobs.override("job-1", {"task": "train", "airflow": "success", "by": "ada"})
    assert job.override == {"task": "train", "airflow": "success", "by": "ada"}
    assert (job.state, job.verdict, job.reason) == (ended.state, ended.verdict, ended.reason)


def test_a_revision_replaces_the_manifest_and_keeps_the_old_one(ledger: Ledger, submit: Submit, clock: Any) -> None:
    job = submit()
    first = Revision("job-1", 0, {"name": "digits"}, {}, "ada", job.submitted_at)
    assert ledger.jobs.revisions("job-1") == [first]
    ledger.attempts.ensure("job-1", "train", after=None)
    ledger.attempts.close("job-1", "train", 1, AttemptClosure("halted", "halted by ada"))
    clock.forward(60)
    second = ledger.jobs.revise("job-1", {"name": "digits", "command": "new"}, {"command": "new"}, "bob")
    assert second == Revision("job-1", 1, {"name": "digits", "command": "new"}, {"command": "new"}, "bob", clock.now)
    clock.forward(60)
    assert ledger.jobs.revise("job-1", {"command": "new", "name": "digits"}, {"command": "new"}, "bob") == second
    assert ledger.jobs.revisions("job-1") == [first, second]
    job = ledger.jobs.get("job-1")
    assert (job.manifest, job.revision) == ({"name": "digits", "command": "new"}, 1)
    ledger.attempts.ensure("job-1", "train", after=1)
    assert [attempt.revision for attempt in ledger.attempts.of_job("job-1")] == [0, 1]
    back = ledger.jobs.revise("job-1", {"name": "digits"}, {"command": None}, "bob")
    assert (back.number, ledger.jobs.get("job-1").manifest) == (2, {"name": "digits"})


def test_an_ended_job_is_not_changed(ledger: Ledger, submit: Submit) -> None:
    submit()
    ledger.jobs.finish("job-1", Verdict(State.FAILED, "exit code 1"))
    with pytest.raises(RefusedError, match="has ended FAILED; submit it again with them"):
        ledger.jobs.revise("job-1", {"name": "other"}, {"name": "other"}, "bob")
