"""A job's place in line: joining it, and one question to the allocator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from updraft.exceptions import RefusedError
from updraft.guardian.records import ledger, manifest_of, memory_mib, place_learners
from updraft.lifecycle import State
from updraft.settings import settings

if TYPE_CHECKING:
    from updraft.allocation import Request
    from updraft.ledger import Job
    from updraft.manifest import Manifest
    from updraft.taints import Toleration


def join(job: Job) -> None:
    """Puts the job in line with what its manifest asks for; once in line it keeps its place."""
    ledger().enqueue(job.id, place_of(job))


def rejoin(job_id: str, role: str) -> None:
    """A job that gave its grant back goes to the end of the line; one that has its place keeps it."""
    book = ledger()
    book.requeue(job_id, place_of(book.job(job_id), role=role))


def place_of(job: Job, revised: Mapping[str, Any] | None = None, *, role: str = "train") -> Request:
    """What the job asks for, or will ask for with a revised manifest."""
    from updraft.manifest import parse

    manifest = manifest_of(job) if revised is None else parse(revised)
    return request_of(manifest, job.id, job.submitted_at, role=role)


def request_of(manifest: Manifest, job_id: str, requested_at: datetime, *, role: str = "train") -> Request:
    from updraft.allocation import Request
    from updraft.kubernetes.objects import SIDECAR_MEMORY_MIB

    resources = manifest.resources
    return Request(
        job_id=job_id,
        learners=place_learners(manifest, role),
        cpus=resources.cpus,
        memory_mib=memory_mib(manifest) + SIDECAR_MEMORY_MIB,
        gpus=resources.gpus,
        gpu_type=resources.gpu_type,
        requested_at=requested_at,
    )


def why_never(manifest: Manifest, nodes: Sequence[dict[str, Any]], tolerations: Sequence[Toleration]) -> str | None:
    """Why the job's gang can never run on these nodes, whatever else does; None if it can."""
    from updraft.allocation import capacity_from_nodes, plan_admissions

    if (disk := _disk_of_no_node(manifest, nodes)) is not None:
        return disk
    request = request_of(manifest, "asked", datetime.now(UTC))
    plan = plan_admissions([request], [], capacity_from_nodes(nodes, tolerations))
    return plan.impossible[0].reason if plan.impossible else None


def ask(job_id: str, nodes: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """One question to the allocator: `granted`, `impossible`, `cancelled`, `halt` or `waiting`, and why.

    The reason for waiting is written to the ledger as the QUEUED job's reason.
    """
    from updraft.allocation import capacity_from_nodes

    book = ledger()
    if (left := _left(job_id)) is not None:
        return left
    job = book.job(job_id)
    # Read only where it matters: every waiting job asks again and again.
    asks_for_disk = (job.manifest.get("resources") or {}).get("disk")
    if asks_for_disk and (never := _disk_of_no_node(manifest_of(job), nodes)) is not None:
        return "impossible", never
    try:
        admission = book.try_admit(job_id, capacity_from_nodes(nodes, settings().tolerations))
    except RefusedError:
        if book.job(job_id).state is State.HALTED:  # another guardian took it out of the line just now
            return "halt", f"job {job_id} was halted"
        raise
    if admission.granted:
        return "granted", "the whole gang has its place"
    if admission.impossible:
        return "impossible", admission.reason
    book.move(job_id, State.QUEUED, admission.reason, {"place": admission.place}, only_from=State.QUEUED)
    return "waiting", admission.reason


def ask_without_cluster(job_id: str, problem: str) -> tuple[str, str]:
    """While nobody can tell what is free: as `ask`, but nothing is granted, and the problem is why the job waits."""
    if (left := _left(job_id)) is not None:
        return left
    ledger().move(job_id, State.QUEUED, problem, only_from=State.QUEUED)
    return "waiting", problem


def _disk_of_no_node(manifest: Manifest, nodes: Sequence[dict[str, Any]]) -> str | None:
    """Why no node can ever set aside the disk that a learner asks for. It is no part of what is granted: what others
    ask for is small beside a node's, and comes back."""
    from updraft.quantity import parse_quantity

    asked = manifest.resources.disk_bytes or 0
    if not asked:
        return None
    there = [(node.get("status") or {}).get("allocatable") or {} for node in nodes]
    amounts = [parse_quantity(each["ephemeral-storage"]) for each in there if "ephemeral-storage" in each]
    if len(amounts) < len(nodes) or not amounts or (largest := max(amounts)) >= asked:
        return None
    return (
        f"resources.disk: a learner asks for {asked / 2**30:.1f} GiB of its node's disk, and no node has more than "
        f"{float(largest) / 2**30:.1f} GiB to give"
    )


def _left(job_id: str) -> tuple[str, str] | None:
    """Why the job is in line no longer, or shall not be."""
    book = ledger()
    job = book.job(job_id)
    if job.ended:
        return "impossible", f"job {job_id} has ended {job.state.value}"
    if job.cancel_requested_by is not None:
        return "cancelled", f"cancelled by {job.cancel_requested_by}"
    if (halt := book.pending(job_id, "halt")) is not None:
        return "halt", f"halted by {halt.by}"
    return None
