"""Halt a job and resume it, each in one transaction.

What a controller has read need not be true when it writes: it may have been suspended for a minute while another
controller continued. So the conditions of each step are checked again under the job's lock.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, select

from updraft.allocation import GangRequest as Place
from updraft.ledger import admission, requests, revisions
from updraft.ledger import jobs as job_rows
from updraft.ledger.tables import attempts
from updraft.lifecycle import State


def rest(connection: Connection, job_id: str, kept: str, attempt: int | None, now: datetime) -> bool:
    """Move the job to HALTED: its grant is released and the request answered. `kept`: the checkpoint from which it can
    resume.

    Returns False and does nothing if the halt was withdrawn or a controller has gone on (an attempt is open).
    """
    job = job_rows.get(connection, job_id, lock=True)
    asked = requests.pending(connection, job_id, "halt")
    if job.ended or (asked is None and job.state is not State.HALTED) or _runs(connection, job_id):
        return False
    admission.release(connection, job_id, now)
    if asked is not None:
        if job.state is not State.HALTED:
            tell = {"state": State.HALTED.value, "tags": {"updraft.halted_by": asked.by}}
            reason = f"halted by {asked.by}; {kept}"
            job_rows.move(connection, job_id, State.HALTED, reason, {"attempt": attempt}, now, tell=tell)
        requests.answer(connection, job_id, asked.seq, f"halted; {kept}", now)
    return True


def rejoin(connection: Connection, job_id: str, seq: int, place: Place, now: datetime) -> bool:
    """Obey the resume request `seq`: put the job into the queue again, with its revision if the request brings one.

    Returns False and does nothing if the request is answered, or the job has ended or runs.
    """
    job = job_rows.get(connection, job_id, lock=True)
    asked = requests.pending(connection, job_id, "resume")
    if asked is None or asked.seq != seq or job.ended or job.cancel_requested_at is not None:
        return False
    if job.state not in (State.HALTED, State.QUEUED):
        return False
    if asked.revision:
        revisions.revise(connection, job_id, asked.revision["manifest"], asked.revision["changes"], asked.by, now)
        admission.release(connection, job_id, now)  # its place in the queue was for the earlier revision
    admission.enqueue(connection, job_id, place)
    if job.state is State.HALTED:
        revision = job_rows.get(connection, job_id).revision
        tell = {
            "state": State.QUEUED.value,
            "tags": {"updraft.resumed_by": asked.by, "updraft.revision": str(revision)},
        }
        reason = f"resumed by {asked.by}; waiting to be admitted"
        job_rows.move(connection, job_id, State.QUEUED, reason, {}, now, tell=tell)
    requests.answer(connection, job_id, seq, "resumed: it is in the queue", now)
    return True


def give_back(connection: Connection, job_id: str, now: datetime) -> bool:
    """Give the room of a job that runs no learner back, as the planner has asked, and put the job into the queue where
    it was before.

    Returns False and does nothing if nobody asks for it any more, or a controller has gone on (an attempt is open).
    """
    job = job_rows.get(connection, job_id, lock=True)
    reason = admission.leaving(connection, job_id)
    if reason is None or job.ended or _runs(connection, job_id):
        return False
    if admission.settle(connection, job_id, now):  # it keeps its room, with the size that was decided for it
        return False
    request = admission.held(connection, job_id)
    admission.release(connection, job_id, now)
    admission.enqueue(connection, job_id, request)
    tell = {"state": State.QUEUED.value, "tags": {}}
    job_rows.move(connection, job_id, State.QUEUED, f"{reason}; waiting to be admitted again", {}, now, tell=tell)
    return True


def _runs(connection: Connection, job_id: str) -> bool:
    open_one = select(attempts.c.number).where(attempts.c.job_id == job_id, attempts.c.ended_at.is_(None))
    return connection.execute(open_one.limit(1)).first() is not None
