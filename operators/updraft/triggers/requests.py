"""Waits until a job's guardian has answered a request, or until it has been waited for long enough."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from updraft.exceptions import UpdraftError

POLL_SECONDS = 1.5


class AnswerTrigger(BaseTrigger):
    """Fires `{"kind": "answered" | "late", "seq": ...}`; the answer itself stands in the ledger."""

    def __init__(self, *, job_id: str, seq: int, until: float) -> None:
        super().__init__()
        self.job_id = job_id
        self.seq = seq
        self.until = until  # unix seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"job_id": self.job_id, "seq": self.seq, "until": self.until}
        return "updraft.triggers.requests.AnswerTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while not await self._answered():
            if time.time() >= self.until:
                yield TriggerEvent({"kind": "late", "seq": self.seq})
                return
            await asyncio.sleep(POLL_SECONDS)
        yield TriggerEvent({"kind": "answered", "seq": self.seq})

    async def _answered(self) -> bool:
        try:
            return await asyncio.to_thread(answered, self.job_id, self.seq)
        except UpdraftError as exc:  # the ledger is away: asked again
            self.log.warning("Whether the request was answered is not known: %s", exc)
            return False


def answered(job_id: str, seq: int) -> bool:
    from updraft.ledger import open_ledger
    from updraft.settings import settings

    requests = open_ledger(settings().ledger_url).requests(job_id)
    return any(item.seq == seq and item.answered_at is not None for item in requests)
