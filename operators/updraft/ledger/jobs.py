"""Store jobs and their transitions. These functions work in an open transaction, which `Ledger` opens."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, case, func, insert, literal, or_, select, update
from sqlalchemy.exc import IntegrityError

from updraft.exceptions import IllegalTransitionError, NotFoundError, RefusedError
from updraft.ledger import bounds, outbox
from updraft.ledger.records import Job, ListedJob, NewJob, Shown, Transition
from updraft.ledger.tables import ID_LENGTH, NAME_LENGTH, WORD_LENGTH, grants, jobs, transitions
from updraft.lifecycle import TERMINAL, State, Verdict, check

IDS_AT_ONCE = 500  # in one query
# For a queued job, show the planner's reason for waiting; in all other states, the reason of the last transition.
_PLANNED = select(
    case((grants.c.granted_at.is_not(None), literal("granted; about to start")), else_=grants.c.reason)
).where(grants.c.job_id == jobs.c.id, grants.c.released_at.is_(None))
_REASON = case(
    (jobs.c.state == State.QUEUED.value, func.coalesce(_PLANNED.scalar_subquery(), jobs.c.reason)), else_=jobs.c.reason
).label("reason")
_COLUMNS = {column.name: _REASON if column.name == "reason" else column for column in jobs.c}
WHOLE = tuple(_COLUMNS.values())
LISTED = tuple(_COLUMNS[field.name] for field in fields(ListedJob))
TOUCH_EVERY = timedelta(seconds=10)  # controllers look every second or two; the ledger is written less often
KEYS = {column.name: column.key for column in jobs.c}  # rows have the columns' names


def record(connection: Connection, new: NewJob, now: datetime) -> Job:
    """Record a new job. Idempotent by id. Raises RefusedError when the id belongs to another DAG run."""
    row = {
        "id": bounds.identifier("job id", new.id, ID_LENGTH),
        "tenant": bounds.identifier("tenant", new.tenant, WORD_LENGTH),
        "name": bounds.identifier("name", new.name, NAME_LENGTH),
        "dag_id": bounds.identifier("dag_id", new.dag_id, ID_LENGTH),
        "run_id": bounds.identifier("run_id", new.run_id, ID_LENGTH),
        **manifest_values(bounds.document("manifest", new.manifest)),
        "state": State.PENDING.value,
        "reason": "submitted",
        "submitted_by": bounds.identifier("submitted_by", new.submitted_by, NAME_LENGTH),
        "submitted_at": new.submitted_at or now,
        "data": [],
    }
    try:
        with connection.begin_nested():
            connection.execute(insert(jobs).values(**row))
    except IntegrityError:
        existing = of_run(connection, new.dag_id, new.run_id) or get(connection, new.id)
        if existing.id != new.id:
            raise RefusedError(
                f"job id: run {new.run_id!r} of DAG {new.dag_id!r} is job {existing.id!r} already, not {new.id!r}"
            ) from None
        if (existing.dag_id, existing.run_id, existing.tenant) != (new.dag_id, new.run_id, new.tenant):
            raise RefusedError(
                f"job id: {new.id!r} is already the job of run {existing.run_id!r} of DAG {existing.dag_id!r}; "
                "submit with another id"
            ) from None
        return existing
    _note(connection, new.id, now, None, State.PENDING, "submitted", None)
    return get(connection, new.id)


def manifest_values(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that hold a manifest and what is taken from it."""
    return {"manifest": manifest, "shown": Shown.of(manifest).to_json()}


def get(connection: Connection, job_id: str, *, lock: bool = False) -> Job:
    """Return the job. `lock`: others that lock the same job wait until this transaction ends (PostgreSQL; SQLite has
    one writer)."""
    query = select(*WHOLE).where(jobs.c.id == job_id)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise NotFoundError(f"job: {job_id!r} does not exist")
    return _job(row)


def of_run(connection: Connection, dag_id: str, run_id: str) -> Job | None:
    """Return the job of a DAG run, if it was recorded."""
    query = select(*WHOLE).where(jobs.c.dag_id == dag_id, jobs.c.run_id == run_id)
    row = connection.execute(query).one_or_none()
    return None if row is None else _job(row)


def find(
    connection: Connection,
    *,
    tenant: str | None,
    state: State | None,
    name: str | None,
    limit: int,
    before: str | None,
) -> list[ListedJob]:
    """Return jobs, newest first, without their large fields. `before`: the id of the last job of the page before."""
    if limit < 1:
        raise RefusedError(f"limit: {limit} must be at least 1")
    query = select(*LISTED).order_by(jobs.c.submitted_at.desc(), jobs.c.id.desc()).limit(limit)
    if tenant is not None:
        query = query.where(jobs.c.tenant == tenant)
    if state is not None:
        query = query.where(jobs.c.state == State(state).value)
    if name is not None:
        query = query.where(jobs.c.name == name)
    if before is not None:
        last = get(connection, before)
        older = jobs.c.submitted_at < last.submitted_at
        query = query.where(or_(older, and_(jobs.c.submitted_at == last.submitted_at, jobs.c.id < last.id)))
    return [_listed(connection, row) for row in connection.execute(query).all()]


def recorded(connection: Connection, runs: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return those of the (DAG, run) pairs that are the controllers of jobs."""
    run_ids = [run_id for _, run_id in runs]
    query = select(jobs.c.dag_id, jobs.c.run_id)
    found = {
        (dag_id, run_id)
        for at in range(0, len(run_ids), IDS_AT_ONCE)
        for dag_id, run_id in connection.execute(query.where(jobs.c.run_id.in_(run_ids[at : at + IDS_AT_ONCE])))
    }
    return found & set(runs)


def history(connection: Connection, job_id: str) -> list[Transition]:
    """Return the job's transitions, oldest first."""
    rows = connection.execute(select(transitions).where(transitions.c.job_id == job_id).order_by(transitions.c.seq))
    found = [
        Transition(
            row.job_id,
            row.seq,
            row.at,
            State(row.from_state) if row.from_state else None,
            State(row.to_state),
            row.reason,
            row.evidence,
        )
        for row in rows
    ]
    if not found:
        raise NotFoundError(f"job: {job_id!r} does not exist")
    return found


def move(
    connection: Connection,
    job_id: str,
    to: State,
    reason: str,
    evidence: Mapping[str, Any] | None,
    now: datetime,
    *,
    tell: Mapping[str, Any] | None = None,
    only_from: State | None = None,
) -> Job:
    """Take one step of the life cycle. The same state again is a note, or nothing when the reason is the same too.

    `tell`: {"state", "tags"} of the message to MLflow that goes with the step; without "state", the new state.
    `only_from`: do nothing in any other state.
    """
    job = get(connection, job_id, lock=True)
    if only_from is not None and job.state is not only_from:
        return job
    reason = bounds.message(reason)
    if job.state == to:
        if job.reason == reason:
            return job
    elif to in TERMINAL:
        raise IllegalTransitionError(f"{job_id}: {to} is an end and needs a verdict; call finish instead of move")
    else:
        check(job.state, to)
    step(connection, job, to, reason, evidence, now)
    if tell is not None:
        outbox.put(connection, job_id, State(tell.get("state", to)), tell.get("tags", {}), now)
    return get(connection, job_id)


def set_run(connection: Connection, job_id: str, mlflow_run_id: str, mlflow_experiment_id: str) -> Job:
    """Record the job's MLflow run; a job has one for its whole life. Raises RefusedError for a second one."""
    job = get(connection, job_id, lock=True)
    if job.mlflow_run_id is not None and job.mlflow_run_id != mlflow_run_id:
        raise RefusedError(f"mlflow_run_id: {job_id!r} has run {job.mlflow_run_id!r} already, not {mlflow_run_id!r}")
    values = {
        "mlflow_run_id": bounds.identifier("mlflow_run_id", mlflow_run_id, NAME_LENGTH),
        "mlflow_experiment_id": bounds.identifier("mlflow_experiment_id", mlflow_experiment_id, NAME_LENGTH),
    }
    connection.execute(update(jobs).where(jobs.c.id == job_id).values(**values))
    return get(connection, job_id)


def set_inputs(connection: Connection, job_id: str, code_tree: str | None, data: Sequence[Mapping[str, Any]]) -> Job:
    """Return what the job really used: the code's tree, and per data set a description (tree, source, fingerprint,
    …)."""
    get(connection, job_id, lock=True)
    code = None if code_tree is None else bounds.identifier("code_tree", code_tree, WORD_LENGTH)
    values = {"code_tree": code, "data": bounds.document("data", list(data))}
    connection.execute(update(jobs).where(jobs.c.id == job_id).values(**values))
    return get(connection, job_id)


def live(connection: Connection) -> list[Job]:
    """Return the jobs that have not ended, oldest first."""
    query = select(*WHOLE).where(jobs.c.state.not_in([state.value for state in TERMINAL]))
    return [_job(row) for row in connection.execute(query.order_by(jobs.c.submitted_at, jobs.c.id))]


def note(
    connection: Connection,
    job_id: str,
    reason: str,
    evidence: Mapping[str, Any] | None,
    now: datetime,
    only_from: State | None = None,
) -> Transition:
    """Add a transition to the same state; the same reason again adds nothing. The reason of an ended job stays the
    verdict's.

    `only_from`: do nothing in any other state.
    """
    job = get(connection, job_id, lock=True)
    reason = bounds.message(reason)
    last = history(connection, job_id)[-1]
    if last.reason == reason or (only_from is not None and job.state is not only_from):
        return last
    if not job.ended:
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(reason=reason))
    _note(connection, job_id, now, job.state, job.state, reason, evidence)
    return history(connection, job_id)[-1]


def override(connection: Connection, job_id: str, what: Mapping[str, Any]) -> Job:
    """Record the result that a user set in Airflow; the newest stays. It changes neither state nor verdict."""
    get(connection, job_id, lock=True)
    connection.execute(update(jobs).where(jobs.c.id == job_id).values(override=bounds.evidence(what)))
    return get(connection, job_id)


def touch_controllers(connection: Connection, guarded: Mapping[str, str], now: datetime) -> None:
    """Record which task or trigger controls each job (job id -> name) and that it is alive, at most once per
    TOUCH_EVERY. A job that does not exist is passed over."""
    due = or_(jobs.c.controller_seen_at.is_(None), jobs.c.controller_seen_at <= now - TOUCH_EVERY)
    change = update(jobs).where(jobs.c.id == bindparam("job"), due)
    values = change.values(controller_seen_at=bindparam("now"), controller_what=bindparam("what"))
    rows = [
        {"job": k, "now": now, "what": bounds.identifier("what", v, NAME_LENGTH)} for k, v in sorted(guarded.items())
    ]
    if rows:  # SQLAlchemy takes an empty list for a statement without values
        connection.execute(values, rows)


def touch_is_due(job: Job, now: datetime) -> bool:
    return job.controller_seen_at is None or job.controller_seen_at <= now - TOUCH_EVERY


def step(
    connection: Connection,
    job: Job,
    to: State,
    reason: str,
    evidence: Mapping[str, Any] | None,
    now: datetime,
    **more: Any,
) -> None:
    """Write a step that the caller has checked, with `more` columns of the job."""
    values: dict[str, Any] = {"state": to.value, "reason": reason, **more}
    if to is State.PROCESSING and job.started_at is None:
        values["started_at"] = now
    connection.execute(update(jobs).where(jobs.c.id == job.id).values(**values))
    _note(connection, job.id, now, job.state, to, reason, evidence)


def _note(
    connection: Connection,
    job_id: str,
    at: datetime,
    from_state: State | None,
    to_state: State,
    reason: str,
    evidence: Mapping[str, Any] | None,
) -> None:
    last = connection.execute(select(func.max(transitions.c.seq)).where(transitions.c.job_id == job_id)).scalar()
    connection.execute(
        insert(transitions).values(
            job_id=job_id,
            seq=(last or 0) + 1,
            at=at,
            from_state=from_state.value if from_state else None,
            to_state=to_state.value,
            reason=reason,
            evidence=bounds.evidence(evidence),
        )
    )


def _listed(connection: Connection, row: Row[Any]) -> ListedJob:
    values = dict(row._mapping)
    shown = values.pop("shown")
    if shown is None:  # the row was written by an earlier version
        manifest = connection.execute(select(jobs.c.manifest).where(jobs.c.id == row.id)).scalar_one()
        shown = Shown.of(manifest).to_json()
    return ListedJob(**{**values, "state": State(values["state"])}, shown=Shown.from_json(shown))


def _job(row: Row[Any]) -> Job:
    values = {KEYS.get(name, name): value for name, value in row._mapping.items()}
    del values["shown"]
    verdict = values.pop("verdict")
    values["state"] = State(values["state"])
    values["data"] = tuple(values["data"])
    if verdict is not None:
        verdict = Verdict.from_json(json.dumps(verdict))
    return Job(verdict=verdict, **values)
