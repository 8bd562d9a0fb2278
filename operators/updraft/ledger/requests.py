"""Store users' requests to a job: halt, resume, cancel. The job's controller obeys and answers them.

A halt withdraws an unanswered resume, and a resume an unanswered halt. The later request still waits for its own
answer: the controller may have begun to obey the earlier one, and then has to obey the later one next.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, get_args

from sqlalchemy import Connection, Row, func, insert, select, update

from updraft.exceptions import NotFoundError, RefusedError
from updraft.ledger import admission, bounds
from updraft.ledger import jobs as job_rows
from updraft.ledger.records import Job, Request, RequestKind
from updraft.ledger.tables import NAME_LENGTH, jobs, requests
from updraft.lifecycle import State
from updraft.lifecycle.request_rules import WITHDRAWN


def request(
    connection: Connection,
    job_id: str,
    kind: RequestKind,
    by: str,
    revision: Mapping[str, Any] | None,
    now: datetime,
) -> Request:
    """Record the request, or return the unanswered one of this kind. Raises RefusedError with advice."""
    if kind not in get_args(RequestKind):
        raise RefusedError(f"request: {kind!r} is none of {', '.join(get_args(RequestKind))}")
    bounds.identifier("by", by, NAME_LENGTH)
    changes = None if revision is None else bounds.document("changes", revision)
    if changes is not None and kind != "resume":
        raise RefusedError(f"changes: cannot come with {kind!r}; give them to resume")
    job = job_rows.get(connection, job_id, lock=True)
    if kind == "cancel":
        return _cancel(connection, job, by, now)
    _refuse_what_cannot_be(connection, job, kind)
    same, opposite = pending(connection, job_id, kind), pending(connection, job_id, _OPPOSITE[kind])
    # A resume with changes needs a halted job: the request to halt stays.
    if opposite is not None and changes is None and (same is None or not same.revision):
        answer(connection, job_id, opposite.seq, f"{WITHDRAWN}: {by} asked to {kind}", now)
    if same is None:
        return _insert(connection, job_id, kind, by, changes, now)
    if changes is not None and changes != same.revision:
        raise RefusedError(
            f"changes: {job_id} was asked to resume by {same.by} already, and has not answered yet; "
            "ask to halt it first, then resume it with your changes"
        )
    return same


def list_requests(connection: Connection, job_id: str) -> list[Request]:
    """Return the job's requests, oldest first."""
    query = select(requests).where(requests.c.job_id == job_id).order_by(requests.c.seq)
    return [_request(row) for row in connection.execute(query)]


def pending(connection: Connection, job_id: str, kind: RequestKind) -> Request | None:
    """Return the newest unanswered one of the kind."""
    query = select(requests).where(
        requests.c.job_id == job_id, requests.c.kind == kind, requests.c.answered_at.is_(None)
    )
    row = connection.execute(query.order_by(requests.c.seq.desc()).limit(1)).one_or_none()
    return None if row is None else _request(row)


def asked(connection: Connection) -> frozenset[str]:
    """Return the jobs with an unanswered request of any kind, and those that are asked to give their room back.
    Requests to ended jobs are answered."""
    query = select(requests.c.job_id).where(requests.c.answered_at.is_(None)).distinct()
    return frozenset(connection.execute(query).scalars()) | admission.all_leaving(connection)


def answer(connection: Connection, job_id: str, seq: int, text: str, now: datetime) -> Request:
    """Answer a request. The first answer stays."""
    job_rows.get(connection, job_id, lock=True)
    key = (requests.c.job_id == job_id) & (requests.c.seq == seq)
    values = {"answered_at": now, "answer": bounds.message(text)}
    connection.execute(update(requests).where(key, requests.c.answered_at.is_(None)).values(**values))
    row = connection.execute(select(requests).where(key)).one_or_none()
    if row is None:
        raise NotFoundError(f"request: {job_id} has no request {seq}")
    return _request(row)


def answer_all(connection: Connection, job_id: str, text: str, now: datetime) -> None:
    """Answer all unanswered requests. The caller has locked the job."""
    key = (requests.c.job_id == job_id) & requests.c.answered_at.is_(None)
    connection.execute(update(requests).where(key).values(answered_at=now, answer=bounds.message(text)))


_OPPOSITE: Mapping[RequestKind, RequestKind] = {"halt": "resume", "resume": "halt"}


def _refuse_what_cannot_be(connection: Connection, job: Job, kind: RequestKind) -> None:
    if job.ended:
        raise RefusedError(f"{kind}: job {job.id!r} has ended {job.state}; an end has no exit, submit it again")
    if job.cancel_requested_at is not None:
        raise RefusedError(f"{kind}: job {job.id!r} was cancelled by {job.cancel_requested_by}; submit it again")
    halted = job.state is State.HALTED
    if kind == "halt" and halted and pending(connection, job.id, "resume") is None:
        raise RefusedError(f"halt: job {job.id!r} is halted already; resume it or cancel it")
    if kind == "resume" and not halted and not any(pending(connection, job.id, k) for k in ("halt", "resume")):
        raise RefusedError(f"resume: job {job.id!r} is {job.state}, not halted; halt it first to change it")


def _cancel(connection: Connection, job: Job, by: str, now: datetime) -> Request:
    """Record a cancellation; the first one stays. For a job that has ended, only the request is recorded and
    answered."""
    for earlier in list_requests(connection, job.id):
        if earlier.kind == "cancel":
            return earlier
    made = _insert(connection, job.id, "cancel", by, None, now)
    if job.ended:
        return answer(connection, job.id, made.seq, f"the job has ended {job.state} already", now)
    values = {"cancel_requested_at": now, "cancel_requested_by": by}
    connection.execute(update(jobs).where(jobs.c.id == job.id).values(**values))
    if job.state is State.QUEUED:
        admission.count_change(connection)  # the jobs behind it move up
    return made


def _insert(
    connection: Connection, job_id: str, kind: RequestKind, by: str, changes: Mapping[str, Any] | None, now: datetime
) -> Request:
    last = connection.execute(select(func.max(requests.c.seq)).where(requests.c.job_id == job_id)).scalar()
    new = Request(job_id, (last or 0) + 1, kind, by, now, changes)
    connection.execute(insert(requests).values(job_id=job_id, seq=new.seq, kind=kind, by=by, at=now, revision=changes))
    return new


def _request(row: Row[Any]) -> Request:
    return Request(**dict(row._mapping))
