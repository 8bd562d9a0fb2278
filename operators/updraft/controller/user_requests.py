"""Carry out requests for a running job: users' halt, resume and cancel, and the planner's wish for its room. Each is a
row of the ledger."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from updraft.controller.queueing import place_of
from updraft.controller.records import launch_of
from updraft.lifecycle import State
from updraft.recovery.ends import EndKind

if TYPE_CHECKING:
    from updraft.ledger import Attempt, Job, Request
    from updraft.services import Services

log = logging.getLogger(__name__)


def wanted(services: Services, job_id: str) -> tuple[Job, Request | None]:
    """Return the job in its current state, and a halt that has no answer yet. Answers a resume that withdrew a halt."""
    book = services.ledger
    job, halt = book.jobs.get(job_id), book.requests.pending(job_id, "halt")
    if halt is None and job.state is not State.HALTED:
        resume = book.requests.pending(job_id, "resume")
        if resume is not None and job.state is State.QUEUED:
            resumed(services, job_id)
            job = book.jobs.get(job_id)
        elif resume is not None and not resume.revision:
            book.requests.answer(job_id, resume.seq, "the halt was withdrawn; the job goes on")
    return job, halt


def ask_to_stop(services: Services, job: Job, attempt: Attempt) -> None:
    """Ask every learner's sidecar to stop: the program saves a checkpoint and exits. A second call changes nothing."""
    from updraft.storage import signals

    launch = launch_of(services.settings, job, attempt)
    for learner in launch.membership.learners:
        signals.request_stop(job.tenant, job.id, attempt.role, attempt.number, learner, store=services.store)


def asked_to_leave(services: Services, job_id: str) -> tuple[Job, str | None, EndKind]:
    """Return the job, why its programs have to save and leave (None: they may run), and which kind of end that is.

    A user's halt goes before the planner's wish for the job's room.
    """
    job, halt = wanted(services, job_id)
    if halt is not None:
        return job, f"halted by {halt.by}", EndKind.HALTED
    return job, services.ledger.queue.leaving(job_id), EndKind.RECLAIMED


def rest(services: Services, job_id: str, attempt: Attempt | None) -> bool:
    """Halt the job once its learners have ended: release its grant, show HALTED, answer the request. Return False if
    the job continues."""
    book = services.ledger
    checkpoints = book.checkpoints.of_job(job_id)
    kept = (
        f"the last checkpoint is {checkpoints[-1].name} (step {checkpoints[-1].step})"
        if checkpoints
        else ("it has no checkpoint: resuming begins anew" if attempt is not None else "it had not started")
    )
    return book.jobs.rest(job_id, kept, attempt=attempt.number if attempt else None)


def resumed(services: Services, job_id: str) -> Request | None:
    """Return the resume request of a halted job, or None. If there is one, the job is in the queue again.

    If the request brings a revision, that is the job's manifest from now on.
    """
    book = services.ledger
    request = book.requests.pending(job_id, "resume")
    if request is None:
        return None
    place = place_of(book.jobs.get(job_id), request.revision["manifest"] if request.revision else None)
    return request if book.jobs.rejoin(job_id, request.seq, place) else None
