"""A job's place in line: joining it, and one question to the allocator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from updraft.guardian.records import ledger, manifest_of, memory_mib
from updraft.lifecycle import State

if TYPE_CHECKING:
    from updraft.ledger import Job


def join(job: Job) -> None:
    """Puts the job in line with what its manifest asks for; once in line it keeps its place."""
    from updraft.allocation import Request
    from updraft.kubernetes.objects import SIDECAR_MEMORY_MIB

    manifest = manifest_of(job)
    resources = manifest.resources
    ledger().enqueue(
        job.id,
        Request(
            job_id=job.id,
            learners=resources.learners,
            cpus=resources.cpus,
            memory_mib=memory_mib(manifest) + SIDECAR_MEMORY_MIB,
            gpus=resources.gpus,
            gpu_type=resources.gpu_type,
            requested_at=job.submitted_at,
        ),
    )


def ask(job_id: str, nodes: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """One question to the allocator: `granted`, `impossible`, `cancelled`, `halt` or `waiting`, and why.

    The reason for waiting is written to the ledger as the QUEUED job's reason.
    """
    from updraft.allocation import capacity_from_nodes

    book = ledger()
    job = book.job(job_id)
    if job.ended:
        return "impossible", f"job {job_id} has ended {job.state.value}"
    if job.cancel_requested_by is not None:
        return "cancelled", f"cancelled by {job.cancel_requested_by}"
    if (halt := book.pending(job_id, "halt")) is not None:
        return "halt", f"halted by {halt.by}"
    admission = book.try_admit(job_id, capacity_from_nodes(nodes))
    if admission.granted:
        return "granted", "the whole gang has its place"
    if admission.impossible:
        return "impossible", admission.reason
    book.move(job_id, State.QUEUED, admission.reason, {"place": admission.place})
    return "waiting", admission.reason
