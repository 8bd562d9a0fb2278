"""Make the answers about the queue from the ledger's rows and the cluster's nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from statistics import median

from updraft.allocation import Policy, learner_text
from updraft.allocation.shares import Past
from updraft.api.reading import JobReader
from updraft.controller.queueing import decided, expected_starts, past_use, policy_of
from updraft.controller.records import manifest_of
from updraft.exceptions import RefusedError, UnavailableError
from updraft.kubernetes.capacity import capacity_of
from updraft.ledger.records import Job, QueueRow
from updraft.manifest import ManifestError
from updraft.manifest.errors import FieldError
from updraft.schemas import EstimateErrors, QueueEntry, QueueList
from updraft.wording import counted


def listed(reader: JobReader) -> QueueList:
    """Return the queue as far as the caller may see its jobs."""
    rows = reader.parts.deadline.call("ledger", lambda: reader.parts.ledger().queue.listing())
    starts = _starts(reader, rows)
    seen = [row for row in rows if reader.policy(reader.caller, row.tenant)]
    return QueueList(
        running=tuple(_entry(row, starts) for row in seen if row.granted_at is not None),
        waiting=tuple(_entry(row, starts) for row in seen if row.granted_at is None),
        estimates=_errors(reader.parts.deadline.call("ledger", reader.parts.ledger().queue.estimate_errors)),
    )


def _errors(seconds: Sequence[float]) -> EstimateErrors | None:
    """Return how far the estimates of the newest jobs were off, of whatever tenant; None if none was made."""
    if not seconds:
        return None
    off = sorted(map(abs, seconds))
    return EstimateErrors(jobs=len(off), median_seconds=median(off), largest_seconds=off[-1])


def _starts(reader: JobReader, rows: Sequence[QueueRow]) -> Mapping[str, datetime]:
    """Return the estimated starts of the jobs that wait. Without the cluster's nodes there is none."""
    if all(row.granted_at is not None for row in rows):
        return {}
    parts = reader.parts
    try:
        nodes = parts.deadline.call("cluster", parts.cluster.nodes)
    except UnavailableError:
        return {}
    capacity = capacity_of(nodes, parts.settings)
    policy, past, now = rules(reader)
    return parts.deadline.call("ledger", lambda: expected_starts(parts.ledger(), rows, capacity, policy, past, now))


def scaled(reader: JobReader, job: Job, learners: int | None, by: str) -> str:
    """Fix the learners of an elastic job, or leave them to the planner again; return what that means, for people.

    Raises RefusedError if that is not possible now, and ManifestError for a number that the manifest does not allow.
    """
    elastic = manifest_of(job).elastic
    if elastic is not None and learners is not None and learners not in elastic.sizes:
        allowed = f"{elastic.sizes[0]} to {elastic.sizes[-1]}"
        problem = f"{learners} is not a size that the job's manifest allows"
        raise ManifestError([FieldError("learners", str(learners), problem, allowed)], "learners")
    parts = reader.parts
    nodes = parts.deadline.call("cluster", parts.cluster.nodes)
    policy, past, now = rules(reader)
    decide = partial(decided, capacity=capacity_of(nodes, parts.settings), policy=policy, past=past, now=now)
    done = parts.deadline.call("ledger", lambda: parts.ledger().queue.scale(job.id, learners, by, decide))
    if not done:
        raise RefusedError(
            f"{job.id} cannot have {learners} learners now: the cluster, or its tenant's quota, has no room for them, "
            "or another job is being resized. Retry later; `updraft queue` shows who has the room"
        )
    if learners is None:
        return "The platform chooses its learners again."
    return f"It gets {counted(learners)}, and keeps that size until `updraft scale {job.id} auto`."


def rules(reader: JobReader) -> tuple[Policy, Past, datetime]:
    """Return what the next decision about the queue depends on besides nodes and jobs: the policy, what tenants have
    used, and the time."""
    parts = reader.parts

    def ask() -> tuple[Policy, Past, datetime]:
        tenants, now = parts.tenancy().tenants, parts.ledger().now()
        past = past_use(parts.ledger(), parts.settings, now) if len(tenants) > 1 else {}
        return policy_of(parts.settings, tenants), past, now

    return parts.deadline.call("ledger", ask)


def _entry(row: QueueRow, starts: Mapping[str, datetime]) -> QueueEntry:
    request = row.request
    return QueueEntry(
        job=request.job_id,
        name=row.name,
        tenant=row.tenant,
        user=row.user,
        state=row.state.value,
        priority=request.priority,
        place=row.admission.place,
        learners=request.learners,
        each=learner_text(request),
        requested_at=request.requested_at,
        granted_at=row.granted_at,
        starts_at=starts.get(request.job_id),
        reason=(row.leaving or "") if row.granted_at is not None else row.admission.reason,
    )
