"""/jobs/{id}/halt, /resume, /cancel: record users' requests in the ledger; the job's trigger obeys them."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends

from updraft.api import history
from updraft.api.access import CallerDep
from updraft.api.bodies import resume_body
from updraft.api.depends import ReaderDep
from updraft.ledger import Job, Request
from updraft.manifest.revision import revision
from updraft.schemas import Accepted, RequestList, ResumeBody
from updraft.tenants import refusals

router = APIRouter(tags=["requests"])
writing = APIRouter(tags=["requests"])


@router.get("/jobs/{job_id}/requests", summary="What people asked of a job, and the answers")
def list_requests(reader: ReaderDep, job_id: str) -> RequestList:
    found = reader.requests(reader.job_if_recorded(job_id))
    return RequestList(requests=tuple(history.request(item) for item in found))


@writing.post("/jobs/{job_id}/halt", status_code=202, summary="Ask a job to stop after a checkpoint, to go on later")
def halt_job(reader: ReaderDep, caller: CallerDep, job_id: str) -> Accepted:
    """Halt a job: its learners save a checkpoint and stop, and what the job held is free for others. Refused (409) for
    a job that has ended, is halted, or was cancelled."""
    job = reader.job(job_id)
    request = reader.parts.deadline.call(
        "ledger", lambda: reader.parts.ledger().requests.make(job.id, "halt", caller.name)
    )
    return _accepted(job, request, "Halting was asked for; the learners save a checkpoint and stop.")


@writing.post(
    "/jobs/{job_id}/resume",
    status_code=202,
    summary="Ask a halted job to go on, with changes or without",
    openapi_extra=resume_body.documented,
)
def resume_job(
    reader: ReaderDep, caller: CallerDep, job_id: str, body: Annotated[ResumeBody | None, Depends(resume_body)]
) -> Accepted:
    """Resume a halted job. The changes are merged into its manifest; null sets a value back to its default. The result
    is validated as a whole: 422 with every wrong field, and every field that may not change."""
    job = reader.job(job_id)
    # For a job that has ended, the ledger refuses the request, so its changes are not checked.
    changes = {} if body is None or job.ended else body.changes
    tenancy = reader.parts.deadline.call("ledger", reader.parts.tenancy)
    brought = revision(job.manifest, changes, partial(refusals, tenancy=tenancy))
    request = reader.parts.deadline.call(
        "ledger", lambda: reader.parts.ledger().requests.make(job.id, "resume", caller.name, revision=brought)
    )
    return _accepted(
        job, request, "Resuming was asked for; the job waits in the queue, then goes on from its checkpoint."
    )


@writing.post("/jobs/{job_id}/cancel", status_code=202, summary="Ask a job to end as CANCELLED")
def cancel_job(reader: ReaderDep, caller: CallerDep, job_id: str) -> Accepted:
    """Cancel a job. It cannot be resumed; halt a job that may go on later. A second request changes nothing."""
    job = reader.job(job_id)
    if job.ended:
        return Accepted(id=job.id, message=f"It has ended {job.state.value} already.")
    request = reader.parts.deadline.call(
        "ledger", lambda: reader.parts.ledger().requests.make(job.id, "cancel", caller.name)
    )
    return _accepted(job, request, "Cancelling was asked for; the job ends within seconds.")


def _accepted(job: Job, request: Request, message: str) -> Accepted:
    return Accepted(id=job.id, message=message, request=history.request(request))
