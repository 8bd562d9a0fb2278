"""/queue: the jobs that wait for room in the cluster and those that have it; the priority of a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends

from updraft.allocation import Grant
from updraft.allocation.document import StateDocument, state_document
from updraft.api import queue
from updraft.api.access import CallerDep
from updraft.api.bodies import priority_body
from updraft.api.depends import ReaderDep
from updraft.kubernetes.capacity import capacity_from_nodes
from updraft.schemas import Accepted, PriorityBody, QueueList

router = APIRouter(tags=["queue"])
writing = APIRouter(tags=["queue"])


@router.get("/queue", summary="The jobs that have room in the cluster, and those that wait for it")
def show_queue(reader: ReaderDep) -> QueueList:
    """Return the jobs of the caller's tenants. A place counts the jobs of all tenants."""
    return queue.listed(reader)


@router.get("/queue/state", summary="What the next decision about the queue is made of")
def show_state(reader: ReaderDep) -> StateDocument:
    """Return nodes, running jobs and queue as `updraft plan` reads them. A job of a tenant whose jobs the caller may
    not see has a number in place of its id."""
    parts = reader.parts
    rows = parts.deadline.call("ledger", lambda: parts.ledger().queue.listing())
    nodes = parts.deadline.call("cluster", parts.cluster.nodes)
    known = []
    for number, row in enumerate(rows, 1):
        seen = reader.policy(reader.caller, row.tenant)
        request = row.request if seen else replace(row.request, job_id=f"job {number} of another tenant")
        known.append((request, row.granted_at))
    return state_document(
        capacity_from_nodes(nodes, parts.settings.tolerations).nodes,
        [Grant(request, granted_at) for request, granted_at in known if granted_at is not None],
        [request for request, granted_at in known if granted_at is None],
        parts.settings.ageing_hours,
    )


@writing.post("/jobs/{job_id}/priority", summary="Give a job another priority", openapi_extra=priority_body.documented)
def prioritize_job(
    reader: ReaderDep, caller: CallerDep, job_id: str, body: Annotated[PriorityBody, Depends(priority_body)]
) -> Accepted:
    """Change the priority in the job's manifest, and its place if it waits in the queue. Refused (409) for a job that
    has ended."""
    job = reader.job(job_id)
    waits = reader.parts.deadline.call(
        "ledger", lambda: reader.parts.ledger().queue.prioritize(job.id, body.priority, caller.name)
    )
    when = "The queue is planned again." if waits else "It counts when the job waits in the queue again."
    return Accepted(id=job.id, message=f"Its priority is {body.priority}. {when}")
