"""A job's place in line: joining it, and one question to the allocator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from updraft.exceptions import RefusedError
from updraft.guardian.records import ledger, memory_mib
from updraft.lifecycle import State
from updraft.settings import settings

if TYPE_CHECKING:
    from updraft.allocation import Request
    from updraft.ledger import Job


def join(job: Job) -> None:
    """Puts the job in line with what its manifest asks for; once in line it keeps its place."""
    ledger().enqueue(job.id, place_of(job))


def rejoin(job_id: str) -> None:
    """A job that gave its grant back goes to the end of the line; one that has its place keeps it."""
    book = ledger()
    book.requeue(job_id, place_of(book.job(job_id)))


def place_of(job: Job, revised: Mapping[str, Any] | None = None) -> Request:
    """What the job asks for, or will ask for with a revised manifest."""
    from updraft.allocation import Request
    from updraft.kubernetes.objects import SIDECAR_MEMORY_MIB
    from updraft.manifest import parse

    manifest = parse(job.manifest if revised is None else revised)
    resources = manifest.resources
    return Request(
        job_id=job.id,
        learners=resources.learners,
        cpus=resources.cpus,
        memory_mib=memory_mib(manifest) + SIDECAR_MEMORY_MIB,
        gpus=resources.gpus,
        gpu_type=resources.gpu_type,
        requested_at=job.submitted_at,
    )


def ask(job_id: str, nodes: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """One question to the allocator: `granted`, `impossible`, `cancelled`, `halt` or `waiting`, and why.

    The reason for waiting is written to the ledger as the QUEUED job's reason.
    """
    from updraft.allocation import capacity_from_nodes

    book = ledger()
    if (left := _left(job_id)) is not None:
        return left
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
    book.move(job_id, State.QUEUED, admission.reason, {"place": admission.place})
    return "waiting", admission.reason


def ask_without_cluster(job_id: str, problem: str) -> tuple[str, str]:
    """While nobody can tell what is free: as `ask`, but nothing is granted, and the problem is why the job waits."""
    if (left := _left(job_id)) is not None:
        return left
    book = ledger()
    if book.job(job_id).state is State.QUEUED:
        book.move(job_id, State.QUEUED, problem)
    return "waiting", problem


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
