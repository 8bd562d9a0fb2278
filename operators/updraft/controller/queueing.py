"""Put a job into the queue, and read what the planner has decided for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from updraft.controller.records import manifest_of, memory_mib, place_learners
from updraft.exceptions import RefusedError
from updraft.lifecycle import State
from updraft.lifecycle.workflow import BEFORE_ROLES, TRAIN_ROLE

if TYPE_CHECKING:
    from updraft.allocation import Capacity, Elasticity, GangRequest, Grant, Plan, Policy
    from updraft.allocation.shares import Past
    from updraft.ledger import Job, Ledger, Use
    from updraft.ledger.records import QueueRow
    from updraft.manifest import Manifest
    from updraft.manifest.model import Elastic
    from updraft.services import Services
    from updraft.settings import Settings
    from updraft.tenants import Tenant


PAST_SECONDS = 30.0
_past: dict[str, tuple[datetime, Past]] = {}  # by the ledger's URL: when it was computed, and what each tenant has used


def enqueue(services: Services, job: Job) -> None:
    """Put the job into the queue with what its manifest asks for; once in the queue it keeps its place."""
    services.ledger.queue.enqueue(job.id, place_of(job))


def requeue(services: Services, job_id: str, role: str) -> None:
    """Move a job that released its grant to the end of the queue. A job that is in the queue keeps its place."""
    book = services.ledger
    book.queue.requeue(job_id, place_of(book.jobs.get(job_id), role=role))


def place_of(job: Job, revised: Mapping[str, Any] | None = None, *, role: str = TRAIN_ROLE) -> GangRequest:
    """Return what the job asks for, or will ask for with a revised manifest."""
    from updraft.manifest import parse

    manifest = manifest_of(job) if revised is None else parse(revised)
    return request_of(manifest, job.id, job.submitted_at, role=role)


def request_of(manifest: Manifest, job_id: str, requested_at: datetime, *, role: str = TRAIN_ROLE) -> GangRequest:
    from updraft.allocation import GangRequest, Placement
    from updraft.kubernetes.objects import COORDINATOR_MEMORY_MIB, SIDECAR_MEMORY_MIB

    trains = role in (TRAIN_ROLE, *BEFORE_ROLES)
    resources = manifest.resources
    beside_mib = SIDECAR_MEMORY_MIB
    if trains and manifest.elastic is not None and manifest.elastic.in_place:
        beside_mib += COORDINATOR_MEMORY_MIB
    return GangRequest(
        job_id=job_id,
        learners=place_learners(manifest, role),
        cpus=resources.cpus,
        memory_mib=memory_mib(manifest) + beside_mib,
        gpus=resources.gpus,
        gpu_type=resources.gpu_type,
        requested_at=requested_at,
        disk_mib=-(-(resources.disk_bytes or 0) // 1024**2),
        placement=Placement.of(manifest.pod.node_selector, manifest.pod.tolerated) if manifest.pod else Placement(),
        priority=manifest.priority,
        tenant=manifest.tenant,
        elastic=elasticity_of(manifest.elastic) if trains and manifest.elastic is not None else None,
    )


def elasticity_of(elastic: Elastic) -> Elasticity:
    """Return the sizes that a manifest allows, of a series of which nothing is known."""
    from updraft.allocation import Elasticity
    from updraft.allocation.elastic import Curve
    from updraft.allocation.scalability import Limits, curve_points

    learners = elastic.min_learners, elastic.max_learners
    batches = elastic.min_batch, elastic.max_batch, elastic.max_batch_per_learner
    limits = Limits(*learners, *batches, in_place=elastic.in_place)
    return Elasticity(limits, Curve(curve_points(limits, ())))


def why_never(
    manifest: Manifest,
    nodes: Sequence[dict[str, Any]],
    settings: Settings,
    tenants: Mapping[str, Tenant] | None = None,
) -> str | None:
    """Return why the job's gang can never run on these nodes and within these tenants' quotas, whatever else does; None
    if it can."""
    from updraft.allocation import Policy, plan_admissions
    from updraft.kubernetes.capacity import capacity_of

    request = request_of(manifest, "asked", datetime.now(UTC))
    policy = Policy(tenants or {})
    plan = plan_admissions([request], [], capacity_of(nodes, settings), policy=policy)
    return plan.impossible[0].reason if plan.impossible else None


def plan(services: Services, nodes: Sequence[dict[str, Any]]) -> None:
    """Plan the whole queue for these nodes."""
    from updraft.kubernetes.capacity import capacity_of

    decide(services, capacity_of(nodes, services.settings))


def decide(services: Services, capacity: Capacity) -> None:
    """Plan the whole queue for this capacity, and the sizes of elastic jobs."""
    tenants = services.tenancy().tenants
    policy, now = policy_of(services.settings, tenants), services.ledger.now()
    past = _recent_past_use(services, now) if len(tenants) > 1 else {}
    services.ledger.queue.plan(partial(decided, capacity=capacity, policy=policy, past=past, now=now))


def decided(
    queue: Sequence[GangRequest],
    granted: Sequence[Grant],
    *,
    capacity: Capacity,
    policy: Policy,
    past: Past,
    now: datetime,
) -> Plan:
    """Return the decision about the queue, and about the sizes of elastic jobs if there are any."""
    from updraft.allocation import plan_admissions

    if not any(each.elastic is not None for each in (*queue, *(grant.request for grant in granted))):
        return plan_admissions(queue, granted, capacity, policy=policy, past=past, now=now)
    from updraft.allocation.resizing import plan_sizes  # NumPy

    return plan_sizes(queue, granted, capacity, policy=policy, past=past, now=now)


def estimate(services: Services, capacity: Capacity) -> None:
    """Record when the jobs that wait are expected to start, for those whose start was not estimated yet."""
    book = services.ledger
    rows = book.queue.listing()
    new = [row.request.job_id for row in rows if row.granted_at is None and not row.estimated]
    if not new:
        return
    now = book.now()
    tenants = services.tenancy().tenants
    past = _recent_past_use(services, now) if len(tenants) > 1 else {}
    starts = expected_starts(book, rows, capacity, policy_of(services.settings, tenants), past, now)
    book.queue.expect(new, starts)


def expected_starts(
    ledger: Ledger, rows: Sequence[QueueRow], capacity: Capacity, policy: Policy, past: Past, now: datetime
) -> Mapping[str, datetime]:
    """Return the estimated starts of the jobs that start first, by job id. `rows`: as the ledger lists the queue."""
    from updraft.allocation import Grant, estimate_starts
    from updraft.allocation.estimate import MOST

    queue = [row.request for row in rows if row.granted_at is None]
    counted = rows[: len(rows) - len(queue) + MOST]  # those behind get no estimate
    usual = ledger.queue.usual_seconds({(row.tenant, row.name) for row in counted})
    return estimate_starts(
        queue,
        [Grant(row.request, row.granted_at) for row in rows if row.granted_at is not None],
        capacity,
        {row.request.job_id: usual[row.tenant, row.name] for row in counted if (row.tenant, row.name) in usual},
        now,
        policy=policy,
        past=past,
    )


def policy_of(settings: Settings, tenants: Mapping[str, Tenant]) -> Policy:
    """Return what the platform's operator has decided about the queue."""
    from updraft.allocation import Policy

    ageing, least_run = timedelta(hours=settings.ageing_hours), timedelta(minutes=settings.least_run_minutes)
    least_size = timedelta(minutes=settings.resize_minutes)
    return Policy(tenants, ageing, least_run, settings.backfill, settings.resize_gain, least_size)


def past_use(ledger: Ledger, settings: Settings, now: datetime) -> Past:
    """Return what each tenant has used on average, where older use counts less."""
    from updraft.allocation.shares import REMEMBERED, average_use

    half_life = timedelta(hours=settings.share_half_life_hours)
    held = ledger.queue.used(now - REMEMBERED * half_life)
    return average_use(((request_held(use), use.granted_at, use.released_at) for use in held), now, half_life)


def _recent_past_use(services: Services, now: datetime) -> Past:
    """Return what `past_use` returned at most PAST_SECONDS ago: it reads days of history, and changes slowly."""
    url = services.settings.ledger_url
    known = _past.get(url)
    if known is None or abs((now - known[0]).total_seconds()) > PAST_SECONDS:
        known = _past[url] = now, past_use(services.ledger, services.settings, now)
    return known[1]


def request_held(use: Use) -> GangRequest:
    """Return what a job has held as a request for it."""
    from updraft.allocation import GangRequest

    amounts = (use.learners, use.cpus, use.memory_mib, use.gpus, use.gpu_type)
    return GangRequest(use.job_id, *amounts, use.granted_at, tenant=use.tenant)


def ask(services: Services, job_id: str) -> tuple[str, str]:
    """Return what the job does now, and why: `granted`, `impossible`, `expired`, `cancelled`, `halt`, `waiting` or
    `unplanned`.

    The planner's reason for waiting goes into the job's history. Raises RefusedError for a job that is neither in the
    queue nor over.
    """
    if (left := _left(services, job_id)) is not None:
        return left
    book = services.ledger
    try:
        admission = book.queue.admission(job_id)
    except RefusedError:
        if book.jobs.get(job_id).state is State.HALTED:  # another controller has just removed it from the queue
            return "halt", f"job {job_id} was halted"
        raise
    if admission.granted:
        return "granted", "the whole gang has its place"
    if admission.impossible:
        return "impossible", admission.reason
    if (left_seconds := wait_left(services, job_id)) is not None and left_seconds <= 0:
        allowed = book.jobs.get(job_id).manifest["budget"]["max_wait"]
        return "expired", f"it has waited for room as long as budget.max_wait allows ({allowed}): {admission.reason}"
    if not admission.planned:
        return "unplanned", admission.reason
    book.jobs.note(job_id, admission.reason, {"place": admission.place}, only_from=State.QUEUED)
    return "waiting", admission.reason


def wait_left(services: Services, job_id: str) -> float | None:
    """Return for how many seconds a job may still wait in the queue; None: for as long as it takes, as every job that
    was launched before."""
    book = services.ledger
    job = book.jobs.get(job_id)
    if not (job.manifest.get("budget") or {}).get("max_wait"):  # nearly all jobs: a manifest takes time to parse
        return None
    allowed = manifest_of(job).budget.max_wait
    if allowed is None or any(each.role == TRAIN_ROLE for each in book.attempts.of_job(job_id)):
        return None
    return (book.queue.requested_at(job_id) + allowed - book.now()).total_seconds()


def _left(services: Services, job_id: str) -> tuple[str, str] | None:
    """Return why the job is in the queue no longer, or shall not be."""
    book = services.ledger
    job = book.jobs.get(job_id)
    if job.ended:
        return "impossible", f"job {job_id} has ended {job.state.value}"
    if job.cancel_requested_by is not None:
        return "cancelled", f"cancelled by {job.cancel_requested_by}"
    if (halt := book.requests.pending(job_id, "halt")) is not None:
        return "halt", f"halted by {halt.by}"
    return None
