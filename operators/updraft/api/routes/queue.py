"""/queue: the jobs that wait for room in the cluster and those that have it; the priority of a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends

from updraft.allocation import GangRequest
from updraft.allocation.document import StateDocument, state_document
from updraft.api import queue, rounds
from updraft.api.access import CallerDep
from updraft.api.bodies import priority_body, scale_body
from updraft.api.depends import ReaderDep
from updraft.kubernetes.capacity import capacity_of
from updraft.manifest import ManifestError
from updraft.schemas import Accepted, PriorityBody, QueueList, RoundList, ScaleBody
from updraft.tenants import refuse_priority

router = APIRouter(tags=["queue"])
writing = APIRouter(tags=["queue"])


@router.get("/queue", summary="The jobs that have room in the cluster, and those that wait for it")
def show_queue(reader: ReaderDep) -> QueueList:
    """Return the jobs of the caller's tenants. A place counts the jobs of all tenants."""
    return queue.listed(reader)


@router.get("/sizes", summary="How the sizes of elastic jobs changed, and what that brought")
def show_sizes(reader: ReaderDep) -> RoundList:
    """Return the newest rounds with the changes of the caller's tenants."""
    return rounds.listed(reader)


@router.get("/queue/state", summary="What the next decision about the queue is made of")
def show_state(reader: ReaderDep) -> StateDocument:
    """Return nodes, running jobs and queue as `updraft plan` reads them. A job of a tenant whose jobs the caller may
    not see has a number in place of its id."""
    parts = reader.parts
    nodes = parts.deadline.call("cluster", parts.cluster.nodes)
    waiting, grants = parts.deadline.call("ledger", lambda: parts.ledger().queue.sized())
    policy, past, now = queue.rules(reader)

    def shown(request: GangRequest, number: int) -> GangRequest:
        seen = reader.policy(reader.caller, request.tenant)
        return request if seen else replace(request, job_id=f"job {number} of another tenant")

    return state_document(
        capacity_of(nodes, parts.settings).nodes,
        [replace(grant, request=shown(grant.request, number)) for number, grant in enumerate(grants, 1)],
        [shown(request, number) for number, request in enumerate(waiting, len(grants) + 1)],
        policy,
        past,
        now,
    )


@writing.post("/jobs/{job_id}/priority", summary="Give a job another priority", openapi_extra=priority_body.documented)
def prioritize_job(
    reader: ReaderDep, caller: CallerDep, job_id: str, body: Annotated[PriorityBody, Depends(priority_body)]
) -> Accepted:
    """Change the priority in the job's manifest, and its place if it waits in the queue. Refused (409) for a job that
    has ended, and (422) for a priority that the job's tenant may not use."""
    job = reader.job(job_id)
    tenancy = reader.parts.deadline.call("ledger", reader.parts.tenancy)
    if refused := refuse_priority(tenancy, job.tenant, body.priority):
        raise ManifestError(refused, "priority")
    waits = reader.parts.deadline.call(
        "ledger", lambda: reader.parts.ledger().queue.prioritize(job.id, body.priority, caller.name)
    )
    when = "The queue is planned again." if waits else "It counts when the job waits in the queue again."
    return Accepted(id=job.id, message=f"Its priority is {body.priority}. {when}")


@writing.post(
    "/jobs/{job_id}/scale", summary="Give an elastic job a number of learners", openapi_extra=scale_body.documented
)
def scale_job(
    reader: ReaderDep, caller: CallerDep, job_id: str, body: Annotated[ScaleBody, Depends(scale_body)]
) -> Accepted:
    """Fix the number of learners, within the manifest's `elastic`, until it is left to the platform again. Refused
    (409) for a job that is being resized (retry then), that is not elastic or has no learners any more, and if there is
    no room; refused (422) for a number that the manifest does not allow."""
    job = reader.job(job_id)
    return Accepted(id=job.id, message=queue.scaled(reader, job, body.learners, caller.name))
