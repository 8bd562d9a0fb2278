"""Store the revisions of a job's manifest, each with its author and its changes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select, update

from updraft.exceptions import RefusedError
from updraft.ledger import bounds
from updraft.ledger import jobs as job_rows
from updraft.ledger.records import Job, Revision
from updraft.ledger.tables import NAME_LENGTH, jobs, revisions


def revise(
    connection: Connection,
    job_id: str,
    manifest: Mapping[str, Any],
    changes: Mapping[str, Any],
    by: str,
    now: datetime,
) -> Revision:
    """Return the job's manifest from now on. The manifest that it has already is no new revision: doing it twice is
    once."""
    job = job_rows.get(connection, job_id, lock=True)
    if job.ended:
        raise RefusedError(f"changes: job {job_id!r} has ended {job.state}; submit it again with them")
    bounds.identifier("by", by, NAME_LENGTH)
    known = list_revisions(connection, job)
    new = bounds.document("manifest", manifest)
    if new == job.manifest:
        return known[-1]
    if job.revision == 0:
        _insert(connection, known[0])
    made = Revision(job_id, job.revision + 1, new, bounds.document("changes", changes), by, now)
    _insert(connection, made)
    values = job_rows.manifest_values(new)
    connection.execute(update(jobs).where(jobs.c.id == job_id).values(**values, revision=made.number))
    return made


def list_revisions(connection: Connection, job: Job) -> list[Revision]:
    """Return the revisions, oldest first; the first is the manifest as submitted."""
    query = select(revisions).where(revisions.c.job_id == job.id).order_by(revisions.c.number)
    found = [Revision(**dict(row._mapping)) for row in connection.execute(query)]
    return found or [Revision(job.id, 0, job.manifest, {}, job.submitted_by, job.submitted_at)]


def _insert(connection: Connection, made: Revision) -> None:
    connection.execute(
        insert(revisions).values(
            job_id=made.job_id,
            number=made.number,
            manifest=made.manifest,
            changes=made.changes,
            by=made.by,
            at=made.at,
        )
    )
