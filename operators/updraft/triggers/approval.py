"""Wait beside a person's answer: until the job is cancelled, or nobody has answered in time.

The answer itself comes from Airflow's api-server, which wakes the deferred task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from updraft.controller.approval import CANCELLED, LATE, waiting_key
from updraft.exceptions import UpdraftError
from updraft.services import Services, UsesServices

HALT_ANSWER = "the job has trained and holds nothing: it waits for approval of its model; cancel it to stop that"


class ApprovalTrigger(UsesServices, BaseTrigger):
    """Wait until a job whose model waits for approval is cancelled, or the time for an answer is over.

    Args:
        job_id: The job.
        wait_seconds: How long an answer is waited for, from the time of the question by the ledger's clock.

    Fires `{"kind": "cancelled"}` or `{"kind": "late", "hours": number}` once.
    """

    def __init__(self, *, job_id: str, wait_seconds: float) -> None:
        super().__init__()
        self.job_id = job_id
        self.wait_seconds = wait_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"job_id": self.job_id, "wait_seconds": self.wait_seconds}
        return "updraft.triggers.approval.ApprovalTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while (event := await self._look()) is None:
            await asyncio.sleep(self.services.timing.answer_seconds)
        yield TriggerEvent(event)

    async def _look(self) -> dict[str, Any] | None:
        try:
            return await asyncio.to_thread(look, self.services, self.job_id, self.wait_seconds)
        except UpdraftError as exc:  # the ledger does not answer: ask again
            self.log.warning("Whether the job was cancelled is not known: %s", exc)
            return None


def look(services: Services, job_id: str, wait_seconds: float) -> dict[str, Any] | None:
    """Return the event to fire for the job `job_id`, or None while a person may answer, at most `wait_seconds`. Answers
    requests to halt the job."""
    book = services.ledger
    job = book.jobs.get(job_id)
    if job.cancel_requested_at is not None or job.ended:
        return {"kind": CANCELLED}
    for request in book.requests.of_job(job_id):
        if request.answer is None:
            book.requests.answer(job_id, request.seq, HALT_ANSWER)
    asked = book.series.find(waiting_key(job_id))
    if asked is not None and (book.now() - asked.at).total_seconds() >= wait_seconds:
        return {"kind": LATE, "hours": wait_seconds / 3600}
    book.jobs.touch_all({job_id: "waits for approval"})
    return None
