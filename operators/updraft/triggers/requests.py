"""Wait until a job's controller has answered a request, or until the wait is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from updraft.exceptions import UpdraftError
from updraft.services import Services, UsesServices


class AnswerTrigger(UsesServices, BaseTrigger):
    """Wait until a job has answered a request.

    Args:
        job_id: The job.
        seq: The number of the request among the job's requests.
        wait_seconds: How long to wait from the time of the request, in the ledger's time.

    Fires `{"kind": "answered" | "late", "seq": number}` once; the answer itself is in the ledger.
    """

    def __init__(self, *, job_id: str, seq: int, wait_seconds: float) -> None:
        super().__init__()
        self.job_id = job_id
        self.seq = seq
        self.wait_seconds = wait_seconds  # from the time of the request, in the ledger's time

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"job_id": self.job_id, "seq": self.seq, "wait_seconds": self.wait_seconds}
        return "updraft.triggers.requests.AnswerTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while (kind := await self._look()) is None:
            await asyncio.sleep(self.services.timing.answer_seconds)
        yield TriggerEvent({"kind": kind, "seq": self.seq})

    async def _look(self) -> str | None:
        try:
            return await asyncio.to_thread(look, self.services, self.job_id, self.seq, self.wait_seconds)
        except UpdraftError as exc:  # the ledger does not answer: ask again
            self.log.warning("Whether the request was answered is not known: %s", exc)
            return None


def look(services: Services, job_id: str, seq: int, wait_seconds: float) -> str | None:
    """Return `answered` or `late` for the job's request number `seq`; None while the answer must be waited for.

    A request is late `wait_seconds` after it was made, by the ledger's clock.
    """
    book = services.ledger
    (request,) = (each for each in book.requests.of_job(job_id) if each.seq == seq)
    if request.answered_at is not None:
        return "answered"
    return "late" if (book.now() - request.at).total_seconds() >= wait_seconds else None
