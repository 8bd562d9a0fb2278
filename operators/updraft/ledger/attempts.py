"""Store the attempts of a job's roles. An attempt's number fences older attempts: they can change nothing any more."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from updraft.exceptions import NotFoundError, RefusedError, StaleAttemptError
from updraft.ledger import admission, bounds, documents, facts
from updraft.ledger import jobs as job_rows
from updraft.ledger.records import Attempt, AttemptClosure
from updraft.ledger.tables import WORD_LENGTH, attempts
from updraft.lifecycle import State, is_legal
from updraft.lifecycle.membership import Membership
from updraft.lifecycle.workflow import BEFORE_ROLES, BUILD_ROLE, PREPARE_ROLE, TRAIN_ROLE
from updraft.recovery.evidence import AttemptEvidence
from updraft.recovery.outcome import FailureClass
from updraft.recovery.policy import NO_ROOM, RESIZED, PlannedRelaunch
from updraft.recovery.resume import ResumePlan

UNCOUNTED = frozenset({State.HALTED, State.QUEUED})  # states that do not count as the program's run time
STARTING = frozenset({State.DEPLOYING, State.DOWNLOADING})
BUILDING = ": building environment "  # in the reason while the local node builds an image: no run time either


def ensure_attempt(
    connection: Connection,
    job_id: str,
    role: str,
    *,
    after: int | None,
    resume: ResumePlan | None,
    learners: int,
    batch: int | None,
    now: datetime,
) -> Attempt:
    """Return the attempt that follows the closed attempt `after`, created once for all callers.

    If the newest attempt is open or is not `after`, another process was first, and that attempt is returned. Raises
    RefusedError if the job has ended, a cancel was requested, or the job is halted or in the queue.
    """
    job = job_rows.get(connection, job_id, lock=True)
    if job.ended:
        raise RefusedError(f"attempt: {job_id} has ended {job.state}; nothing is launched for it any more")
    if job.cancel_requested_at is not None:
        raise RefusedError(f"attempt: {job_id} was cancelled by {job.cancel_requested_by}; nothing is launched for it")
    bounds.identifier("role", role, WORD_LENGTH)
    newest = current_attempt(connection, job_id, role)
    if newest is None and after is not None:
        raise NotFoundError(f"attempt: {job_id} has no attempt {after} of role {role!r}")
    if newest is not None and (newest.ended_at is None or newest.number != after):
        return newest
    if job.state in UNCOUNTED:
        raise RefusedError(f"attempt: {job_id} is {job.state}; nothing is launched for it before it has its place")
    counted = attempts.c.role == role if role in BEFORE_ROLES else attempts.c.role.not_in(BEFORE_ROLES)
    last = connection.execute(select(func.max(attempts.c.number)).where(attempts.c.job_id == job_id, counted)).scalar()
    number = int(last or 0) + 1
    values: dict[str, Any] = {
        "started_at": now,
        "evidence": {},
        "resume": documents.written("resume", resume),
        "revision": job.revision,
        "batch": batch,
        **_members(Membership.first(learners)),
    }
    connection.execute(insert(attempts).values(job_id=job_id, role=role, number=number, **values))
    return _get(connection, job_id, role, number)


def current_attempt(connection: Connection, job_id: str, role: str) -> Attempt | None:
    """Return the newest of the role, open or closed."""
    query = select(attempts).where(attempts.c.job_id == job_id, attempts.c.role == role)
    row = connection.execute(query.order_by(attempts.c.number.desc()).limit(1)).one_or_none()
    return None if row is None else _attempt(connection, row)


def list_attempts(connection: Connection, job_id: str) -> list[Attempt]:
    """Return the job's attempts, oldest first."""
    query = select(attempts).where(attempts.c.job_id == job_id)
    query = query.order_by(attempts.c.role != PREPARE_ROLE, attempts.c.role != BUILD_ROLE, attempts.c.number)
    return [_attempt(connection, row) for row in connection.execute(query).all()]


def close_attempt(
    connection: Connection,
    job_id: str,
    role: str,
    number: int,
    closure: AttemptClosure,
    now: datetime,
) -> Attempt:
    """Close the attempt once; the first closure stays.

    A job whose grant is released joins the end of the queue when its back-off is over (`admission.requeue`). Raises
    StaleAttemptError if a newer attempt of the role exists.
    """
    job = job_rows.get(connection, job_id, lock=True)
    current = current_attempt(connection, job_id, role)
    if current is None or number > current.number:
        raise NotFoundError(f"attempt: {job_id} has no attempt {number} of role {role!r}")
    if number < current.number:
        raise StaleAttemptError(
            f"attempt: {number} of role {role!r} of {job_id} is not the newest ({current.number} is); refused"
        )
    if current.ended_at is not None:
        return current
    for found in closure.checkpoints:
        if found["attempt"] == number:
            facts.put_checkpoint(connection, facts.new_checkpoint(job_id, found, now))
    values = {
        "ended_at": now,
        "outcome": bounds.identifier("outcome", closure.outcome, WORD_LENGTH),
        "reason": bounds.message(closure.reason),
        "evidence": documents.evidence(closure.evidence),
        "label": bounds.identifier("label", closure.label, WORD_LENGTH) if closure.label else None,
        "relaunch": documents.written("relaunch", closure.relaunch),
    }
    key = (attempts.c.job_id == job_id) & (attempts.c.role == role) & (attempts.c.number == number)
    connection.execute(update(attempts).where(key).values(**values))
    if role == TRAIN_ROLE:  # a job whose learners were lost meanwhile goes on with its new size too
        admission.settle(connection, job_id, now)
    again = State.RESIZING if closure.label == RESIZED else State.RECOVERING
    shown = State.QUEUED if closure.releases_grant else again
    if (shift := closure.shift) is not None and is_legal(job.state, shown):
        if closure.releases_grant:
            admission.release(connection, job_id, now)
        tell = {"state": shown.value, "tags": dict(shift.tags)}
        evidence = {**shift.evidence, "relaunch": documents.written("relaunch", closure.relaunch)}
        job_rows.move(connection, job_id, shown, shift.reason, evidence, now, tell=tell)
    return _get(connection, job_id, role, number)


def change_members(connection: Connection, job_id: str, role: str, number: int, membership: Membership) -> Attempt:
    """Give the attempt its next generation of members. The same generation again changes nothing.

    Raises StaleAttemptError for an attempt that is closed or not the newest, and RefusedError for a generation that
    does not follow the attempt's: another process has changed the members meanwhile.
    """
    job_rows.get(connection, job_id, lock=True)
    known = current_attempt(connection, job_id, role)
    if known is None or known.number != number or known.ended_at is not None:
        raise StaleAttemptError(f"attempt: {number} of role {role!r} of {job_id} is not its open one; refused")
    if membership == known.membership:
        return known
    if membership.generation != known.membership.generation + 1:
        raise RefusedError(
            f"membership: generation {membership.generation} of {job_id} does not follow {known.membership.generation}"
        )
    key = (attempts.c.job_id == job_id) & (attempts.c.role == role) & (attempts.c.number == number)
    connection.execute(update(attempts).where(key).values(**_members(membership)))
    return _get(connection, job_id, role, number)


def changed_members(connection: Connection) -> dict[tuple[str, str], int]:
    """Return the generation of each open attempt whose members have changed since it began, by job and role."""
    query = select(attempts.c.job_id, attempts.c.role, attempts.c.generation)
    query = query.where(attempts.c.ended_at.is_(None), attempts.c.generation > 1)
    return {(row.job_id, row.role): row.generation for row in connection.execute(query)}


def note_steps(connection: Connection, job_id: str, role: str, number: int, first: int, last: int) -> Attempt:
    """Widen the attempt's range of steps. What a closed attempt still reports is not its own any more."""
    job_rows.get(connection, job_id, lock=True)
    known = _get(connection, job_id, role, number)
    if known.ended_at is not None or covers(known, first, last):
        return known
    values = {
        "first_step": first if known.first_step is None else min(first, known.first_step),
        "last_step": last if known.last_step is None else max(last, known.last_step),
    }
    key = (attempts.c.job_id == job_id) & (attempts.c.role == role) & (attempts.c.number == number)
    connection.execute(update(attempts).where(key).values(**values))
    return _get(connection, job_id, role, number)


def covers(known: Attempt, first: int, last: int) -> bool:
    """Return whether these steps are in the attempt's record already."""
    if known.first_step is None or known.last_step is None:
        return False
    return known.first_step <= first and last <= known.last_step


def runtime_seconds(connection: Connection, job_id: str, role: str, now: datetime) -> float:
    """Return the seconds from the role's first attempt until now, or until the role's end, without the time in
    UNCOUNTED states and of attempts that found no room."""
    of_role = [attempt for attempt in list_attempts(connection, job_id) if attempt.role == role]
    if not of_role:
        return 0.0
    job, newest = job_rows.get(connection, job_id), of_role[-1]
    ends = [now] if job.ended_at is None else [now, job.ended_at]
    if newest.ended_at is not None and newest.relaunch is None and newest.outcome != FailureClass.HALTED:
        ends.append(newest.ended_at)
    begin, end = of_role[0].started_at, min(ends)
    steps = job_rows.history(connection, job_id)
    idle = [
        (step.at, until)
        for step, until in zip(steps, [*(later.at for later in steps[1:]), end], strict=True)
        if step.to_state in UNCOUNTED or (step.to_state in STARTING and BUILDING in step.reason)
    ]
    followed = zip(of_role, [*(later.started_at for later in of_role[1:]), end], strict=True)
    idle += [(attempt.started_at, until) for attempt, until in followed if attempt.label == NO_ROOM]
    counted, at = 0.0, begin
    for first, last in sorted(idle):
        counted += max(0.0, (min(first, end) - at).total_seconds())
        at = max(at, min(last, end))
    return counted + max(0.0, (end - at).total_seconds())


def _get(connection: Connection, job_id: str, role: str, number: int) -> Attempt:
    key = (attempts.c.job_id == job_id) & (attempts.c.role == role) & (attempts.c.number == number)
    row = connection.execute(select(attempts).where(key)).one_or_none()
    if row is None:
        raise NotFoundError(f"attempt: {job_id} has no attempt {number} of role {role!r}")
    return _attempt(connection, row)


def _members(membership: Membership) -> dict[str, Any]:
    """Return the columns of a membership."""
    return {"generation": membership.generation, "membership": membership.to_json()}


def _attempt(connection: Connection, row: Row[Any]) -> Attempt:
    values = dict(row._mapping)
    del values["generation"]
    values["relaunch"] = documents.read(PlannedRelaunch, row.relaunch)
    values["resume"] = documents.read(ResumePlan, row.resume)
    values["evidence"] = documents.read(AttemptEvidence, row.evidence)
    if (found := values["membership"]) is not None:
        return Attempt(**{**values, "membership": Membership.from_json(found)})
    # The row is from an earlier version, which had no membership: use the manifest's number of learners.
    learners = job_rows.get(connection, row.job_id).shown.learners if row.role == TRAIN_ROLE else 1
    return Attempt(**{**values, "membership": Membership.first(learners)})
