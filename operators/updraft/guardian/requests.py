"""What people ask of a running job: halt, resume, cancel. Each is a row in the ledger that the job's trigger obeys."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from updraft.guardian.records import launch_of, ledger, manifest_of
from updraft.lifecycle import State

if TYPE_CHECKING:
    from updraft.ledger import Attempt, Job, Request

log = logging.getLogger(__name__)


def wanted(job_id: str) -> tuple[Job, Request | None]:
    """The job as it is now, and a halt that waits for its answer. A resume that withdrew a halt in time is answered."""
    book = ledger()
    job, halt = book.job(job_id), book.pending(job_id, "halt")
    if halt is None and job.state not in (State.HALTED, State.QUEUED):
        resume = book.pending(job_id, "resume")
        if resume is not None and not resume.revision:
            book.answer(job_id, resume.seq, "the halt was withdrawn; the job was not stopped")
    return job, halt


def ask_to_stop(job: Job, attempt: Attempt) -> None:
    """Every learner's sidecar is told: the program saves a checkpoint and leaves. Twice is harmless."""
    from updraft.storage import signals

    launch = launch_of(job, manifest_of(job), attempt.role, attempt.number)
    for learner in range(1, launch.learners + 1):
        signals.request_stop(job.tenant, job.id, attempt.role, attempt.number, learner)


def rest(job_id: str, attempt: Attempt | None) -> None:
    """The learners are gone: give back what the job held, show HALTED, answer the request."""
    book = ledger()
    book.release(job_id)
    request = book.pending(job_id, "halt")
    by = request.by if request else "a request"
    checkpoints = book.checkpoints(job_id)
    kept = (
        f"the last checkpoint is {checkpoints[-1].name} (step {checkpoints[-1].step})"
        if checkpoints
        else ("it has no checkpoint: resuming begins anew" if attempt is not None else "it had not started")
    )
    if book.job(job_id).state is not State.HALTED:
        tags = {"updraft.halted_by": by}
        book.move(
            job_id, State.HALTED, f"halted by {by}; {kept}", {"attempt": attempt.number if attempt else None},
            tell={"state": "HALTED", "tags": tags},
        )  # fmt: skip
    if request is not None:
        book.answer(job_id, request.seq, f"halted; {kept}")


def resumed(job_id: str) -> Request | None:
    """The resume request of a halted job, if one waits. The job is in line again when this returns one.

    Its revision, if it brings one, is the job's manifest from here on.
    """
    from updraft.guardian.line import join

    book = ledger()
    request = book.pending(job_id, "resume")
    if request is None:
        return None
    if request.revision:
        changes = dict(request.revision)
        book.revise(job_id, changes["manifest"], changes["changes"], request.by)
    job = book.job(job_id)
    join(job)
    tags = {"updraft.resumed_by": request.by, "updraft.revision": str(job.revision)}
    if job.state is State.HALTED:
        reason = f"resumed by {request.by}; waiting to be admitted"
        book.move(job_id, State.QUEUED, reason, {}, tell={"state": "QUEUED", "tags": tags})
    book.answer(job_id, request.seq, "resumed: it is in line")
    return request
