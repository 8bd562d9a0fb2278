"""The queue and what was granted. The decision itself is `updraft.allocation.plan_admissions`."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from updraft.allocation import Capacity, Grant, Request, plan_admissions
from updraft.exceptions import RefusedError
from updraft.ledger import bounds
from updraft.ledger import jobs as job_rows
from updraft.ledger.records import Admission
from updraft.ledger.tables import ALLOCATION_LOCK, WORD_LENGTH, grants, jobs, locks
from updraft.lifecycle import TERMINAL, State


def enqueue(connection: Connection, job_id: str, request: Request) -> None:
    """Puts the job in line. Once in line (or granted) it keeps its place; after a release it joins at the end."""
    if request.job_id != job_id:
        raise RefusedError(f"request: is of job {request.job_id!r}, not of {job_id!r}")
    job = job_rows.get(connection, job_id, lock=True)
    if job.ended:
        raise RefusedError(f"job: {job_id!r} has ended {job.state}; it cannot queue again")
    row = _row(connection, job_id)
    if row is not None and row.released_at is None:
        return
    values = {
        "learners": request.learners,
        "cpus": request.cpus,
        "memory_mib": request.memory_mib,
        "gpus": request.gpus,
        "gpu_type": None if request.gpu_type is None else bounds.word("gpu_type", request.gpu_type, WORD_LENGTH),
        "requested_at": request.requested_at,
        "granted_at": None,
        "released_at": None,
    }
    if row is None:
        connection.execute(insert(grants).values(job_id=job_id, **values))
    else:
        connection.execute(update(grants).where(grants.c.job_id == job_id).values(**values))


def requeue(connection: Connection, job_id: str, request: Request, now: datetime) -> None:
    """A job that gave back its grant joins the end of the line; nothing for one that has a place, or is not QUEUED."""
    if job_rows.get(connection, job_id, lock=True).state is State.QUEUED:
        enqueue(connection, job_id, replace(request, requested_at=now))


def in_line(connection: Connection, job_id: str) -> bool:
    """Whether the job has a place in line, or a grant."""
    row = _row(connection, job_id)
    return row is not None and row.released_at is None


def take_place(connection: Connection, job_id: str, reason: str, now: datetime) -> bool:
    """DEPLOYING, for a QUEUED job whose turn has come. False, and nothing is done, where that is no longer so: whoever
    was told of the grant may have been stopped since, and the job has launched, given it back and waits again."""
    job = job_rows.get(connection, job_id, lock=True)
    row = _row(connection, job_id)
    if job.state is not State.QUEUED or row is None or row.granted_at is None or row.released_at is not None:
        return False
    job_rows.move(connection, job_id, State.DEPLOYING, reason, {}, now)
    return True


def try_admit(connection: Connection, job_id: str, capacity: Capacity, now: datetime) -> Admission:
    """Under the lock: grants to everyone in line whose turn it is, and says how this job stands.

    Jobs that ended or were asked to cancel are no longer in line; what they were granted counts until released.
    """
    take_lock(connection)
    own = _row(connection, job_id)
    if own is None or own.released_at is not None:
        raise RefusedError(f"job: {job_id!r} is not in line; enqueue it first")
    if own.granted_at is not None:
        return Admission(True, None, "granted")
    in_line = (
        select(grants)
        .join_from(grants, jobs, grants.c.job_id == jobs.c.id)
        .where(grants.c.released_at.is_(None), grants.c.granted_at.is_(None))
        .where(jobs.c.state.not_in([state.value for state in TERMINAL]))
        .where(jobs.c.cancel_requested_at.is_(None))
    )
    queue = [_request(row) for row in connection.execute(in_line)]
    plan = plan_admissions(queue, live_grants(connection), capacity)
    if plan.granted:
        connection.execute(update(grants).where(grants.c.job_id.in_(plan.granted)).values(granted_at=now))
    if job_id in plan.granted:
        return Admission(True, None, "granted")
    for waiting in plan.waiting:
        if waiting.job_id == job_id:
            return Admission(False, waiting.place, waiting.reason)
    for impossible in plan.impossible:
        if impossible.job_id == job_id:
            return Admission(False, None, impossible.reason, impossible=True)
    return Admission(False, None, "no longer in line: it has ended or its cancellation was requested")


def release(connection: Connection, job_id: str, now: datetime) -> bool:
    """Gives back what was granted, or leaves the line. Whether there was anything to give back."""
    take_lock(connection)
    done = connection.execute(
        update(grants).where(grants.c.job_id == job_id, grants.c.released_at.is_(None)).values(released_at=now)
    )
    return done.rowcount > 0


def live_grants(connection: Connection) -> list[Grant]:
    """What is granted and not released, oldest first."""
    query = select(grants).where(grants.c.released_at.is_(None), grants.c.granted_at.is_not(None))
    return [Grant(_request(row), row.granted_at) for row in connection.execute(query.order_by(grants.c.granted_at))]


def take_lock(connection: Connection) -> None:
    """One allocation at a time: a row lock on PostgreSQL; on SQLite this transaction is the only writer already."""
    connection.execute(select(locks.c.name).where(locks.c.name == ALLOCATION_LOCK).with_for_update()).one()


def _row(connection: Connection, job_id: str) -> Row[Any] | None:
    return connection.execute(select(grants).where(grants.c.job_id == job_id)).one_or_none()


def _request(row: Row[Any]) -> Request:
    return Request(row.job_id, row.learners, row.cpus, row.memory_mib, row.gpus, row.gpu_type, row.requested_at)
