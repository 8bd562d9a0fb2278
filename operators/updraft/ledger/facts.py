"""Store checkpoints, validations and idempotency records: facts that are written once and read often."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, insert, select, update
from sqlalchemy.exc import IntegrityError

from updraft.exceptions import NotFoundError, StaleAttemptError
from updraft.ledger import bounds, documents
from updraft.ledger import jobs as job_rows
from updraft.ledger.records import Checkpoint, Validation
from updraft.ledger.tables import NAME_LENGTH, WORD_LENGTH, attempts, checkpoints, idempotency_records, validations
from updraft.lifecycle.idempotency import IdempotencyKey
from updraft.lifecycle.workflow import TRAIN_ROLE

T = TypeVar("T")
MOST_JUDGED = 50  # results of one suite that a pod is told, so that it does not validate the same data again


def new_checkpoint(job_id: str, found: Mapping[str, Any], now: datetime) -> Checkpoint:
    """Return the record of a checkpoint that the store has: name, step, attempt, metrics, bytes, uri, created_at. It
    counts as verified now."""
    return Checkpoint(
        job_id=job_id,
        name=found["name"],
        step=found["step"],
        attempt=found["attempt"],
        metrics=found["metrics"],
        bytes=found["bytes"],
        uri=found["uri"],
        created_at=found.get("created_at") or now,
        verified_at=now,
    )


def record_checkpoint(connection: Connection, new: Checkpoint) -> Checkpoint:
    """Record a checkpoint. Idempotent by name: the first record stays, and only a missing `verified_at` is filled in
    later.

    Raises StaleAttemptError for a new checkpoint of a closed attempt: its learners were given up, and what they still
    store must have no effect.
    """
    job_rows.get(connection, new.job_id, lock=True)
    if _checkpoint_row(connection, new.job_id, new.name) is None:
        key = (attempts.c.job_id == new.job_id) & (attempts.c.role == TRAIN_ROLE) & (attempts.c.number == new.attempt)
        if connection.execute(select(attempts.c.number).where(key, attempts.c.ended_at.is_not(None))).first():
            raise StaleAttemptError(
                f"checkpoint: {new.name!r} of {new.job_id} came after the end of attempt {new.attempt}; refused"
            )
    return put_checkpoint(connection, new)


def put_checkpoint(connection: Connection, new: Checkpoint) -> Checkpoint:
    """Record a checkpoint as `record_checkpoint` does, whatever its attempt. The caller has locked the job."""
    existing = _checkpoint_row(connection, new.job_id, new.name)
    key = (checkpoints.c.job_id == new.job_id) & (checkpoints.c.name == new.name)
    if existing is None:
        connection.execute(
            insert(checkpoints).values(
                job_id=new.job_id,
                name=bounds.identifier("checkpoint", new.name, NAME_LENGTH),
                step=new.step,
                attempt=new.attempt,
                metrics=bounds.document("metrics", new.metrics),
                bytes=new.bytes,
                uri=bounds.message(new.uri),
                created_at=new.created_at,
                verified_at=new.verified_at,
            )
        )
    elif existing.verified_at is None and new.verified_at is not None:
        connection.execute(update(checkpoints).where(key).values(verified_at=new.verified_at))
    row = _checkpoint_row(connection, new.job_id, new.name)
    assert row is not None
    return _checkpoint(row)


def list_checkpoints(
    connection: Connection, job_id: str, *, with_deleted: bool, with_quarantined: bool
) -> list[Checkpoint]:
    """Return the job's checkpoints, lowest step first."""
    query = select(checkpoints).where(checkpoints.c.job_id == job_id).order_by(checkpoints.c.step, checkpoints.c.name)
    if not with_deleted:
        query = query.where(checkpoints.c.deleted_at.is_(None))
    if not with_quarantined:
        query = query.where(checkpoints.c.quarantined_at.is_(None))
    return [_checkpoint(row) for row in connection.execute(query)]


def mark_checkpoint_deleted(connection: Connection, job_id: str, name: str, reason: str, now: datetime) -> Checkpoint:
    """Mark a checkpoint as deleted before its objects are removed: if the caller dies in between, its successor removes
    them. A second call changes nothing."""
    return _mark(connection, job_id, name, deleted_at=now, delete_reason=bounds.message(reason))


def quarantine_checkpoint(connection: Connection, job_id: str, name: str, reason: str, now: datetime) -> Checkpoint:
    """Quarantine a damaged or incomplete checkpoint: its files are kept, and no attempt resumes from it. The first
    reason stays."""
    return _mark(connection, job_id, name, quarantined_at=now, quarantine_reason=bounds.message(reason))


def validation(connection: Connection, tenant: str, fingerprint: str, suite_digest: str) -> Validation | None:
    query = select(validations).where(
        validations.c.tenant == tenant,
        validations.c.fingerprint == fingerprint,
        validations.c.suite_digest == suite_digest,
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else Validation(**dict(row._mapping))


def judged(connection: Connection, tenant: str, suite_digest: str) -> tuple[str, ...]:
    """Return the fingerprints on which the suite's verdict is known, latest first."""
    query = select(validations.c.fingerprint).where(
        validations.c.tenant == tenant, validations.c.suite_digest == suite_digest
    )
    return tuple(connection.execute(query.order_by(validations.c.at.desc()).limit(MOST_JUDGED)).scalars())


def record_validation(connection: Connection, new: Validation) -> Validation:
    """Record the result of a suite on data. The first result for this data and this suite stays."""
    try:
        with connection.begin_nested():
            connection.execute(
                insert(validations).values(
                    tenant=bounds.identifier("tenant", new.tenant, WORD_LENGTH),
                    fingerprint=bounds.identifier("fingerprint", new.fingerprint, WORD_LENGTH),
                    suite_digest=bounds.identifier("suite_digest", new.suite_digest, WORD_LENGTH),
                    success=new.success,
                    result=bounds.document("result", new.result),
                    at=new.at,
                )
            )
    except IntegrityError:
        pass  # another process wrote it first
    stored = validation(connection, new.tenant, new.fingerprint, new.suite_digest)
    assert stored is not None
    return stored


def idempotency_record(connection: Connection, job_id: str, key: IdempotencyKey[T]) -> T | None:
    """Return the job's record of this key, or None."""
    rows = idempotency_records.c
    query = select(rows.value).where(rows.job_id == job_id, rows.key == key.name)
    return documents.read(key.kind, connection.execute(query).scalar_one_or_none())


def put_idempotency_record(connection: Connection, job_id: str, key: IdempotencyKey[T], value: T, now: datetime) -> T:
    """Record `value` unless the job has a record of this key, and return the recorded value."""
    job_rows.get(connection, job_id, lock=True)
    stored = idempotency_record(connection, job_id, key)
    if stored is not None:
        return stored
    name = bounds.identifier("idempotency key", key.name, NAME_LENGTH)
    document = documents.written(name, value, key.kind)
    connection.execute(insert(idempotency_records).values(job_id=job_id, key=name, value=document, at=now))
    return value


def _mark(connection: Connection, job_id: str, name: str, **values: Any) -> Checkpoint:
    """Mark a checkpoint and return it. The first of `values`, a time, shows whether it was marked; the first mark
    stays."""
    job_rows.get(connection, job_id, lock=True)
    key = (checkpoints.c.job_id == job_id) & (checkpoints.c.name == name)
    unmarked = checkpoints.c[next(iter(values))].is_(None)
    connection.execute(update(checkpoints).where(key, unmarked).values(**values))
    row = _checkpoint_row(connection, job_id, name)
    if row is None:
        raise NotFoundError(f"checkpoint: {name!r} of {job_id} is not in the ledger")
    return _checkpoint(row)


def _checkpoint_row(connection: Connection, job_id: str, name: str) -> Row[Any] | None:
    query = select(checkpoints).where(checkpoints.c.job_id == job_id, checkpoints.c.name == name)
    return connection.execute(query).one_or_none()


def _checkpoint(row: Row[Any]) -> Checkpoint:
    values: dict[str, Any] = dict(row._mapping)
    metrics: Mapping[str, Any] = values.pop("metrics")
    # NaN and infinities are stored as text, which float() reads.
    return Checkpoint(metrics={name: float(number) for name, number in metrics.items()}, **values)
