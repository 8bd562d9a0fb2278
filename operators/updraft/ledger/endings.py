"""End a job in one transaction: its verdict, the message to MLflow, and the answers to its open requests."""

from __future__ import annotations

import logging
from datetime import datetime

from sqlalchemy import Connection

from updraft.ledger import admission, bounds, outbox, requests
from updraft.ledger import jobs as job_rows
from updraft.ledger.records import Job
from updraft.lifecycle import State, Verdict, check, is_legal

log = logging.getLogger(__name__)


def finish(connection: Connection, job_id: str, verdict: Verdict, now: datetime) -> Job:
    """End the job. The first verdict stays; later callers get the job as it ended."""
    job = job_rows.get(connection, job_id, lock=True)
    if job.ended:
        if job.verdict is not None and job.verdict.state != verdict.state:
            log.warning("%s already ended %s; the later verdict %s is ignored", job_id, job.state, verdict.state)
        return job
    if verdict.state is State.COMPLETED and not is_legal(job.state, verdict.state):
        # The learners' last states were not seen while their pods existed; the stored results prove them.
        job = job_rows.move(connection, job_id, State.STORING, "the learners have ended", None, now)
    check(job.state, verdict.state)
    if job.state is State.QUEUED:
        admission.count_change(connection)  # the jobs behind it move up
    kept = bounds.verdict(verdict)
    job_rows.step(connection, job, verdict.state, kept["reason"], kept["evidence"], now, ended_at=now, verdict=kept)
    tags = {"updraft.verdict": verdict.state.value, "updraft.reason": kept["reason"]}
    outbox.put(connection, job_id, verdict.state, tags, now)
    requests.answer_all(connection, job_id, f"the job has ended {verdict.state}: {kept['reason']}", now)
    return job_rows.get(connection, job_id)
