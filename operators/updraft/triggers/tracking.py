"""Wait for MLflow until a job's run can be opened; then the job's first task continues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from updraft.controller.outbox import require_tracking
from updraft.exceptions import UnavailableError
from updraft.services import UsesServices


class TrackingTrigger(UsesServices, BaseTrigger):
    """Wait until MLflow answers, for the job `job_id`, whose run could not be opened.

    Fires `{"kind": "again", "reason": text}` once: when MLflow answers, when the job has ended, or when it is to be
    cancelled.
    """

    def __init__(self, *, job_id: str) -> None:
        super().__init__()
        self.job_id = job_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "updraft.triggers.tracking.TrackingTrigger", {"job_id": self.job_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while True:
            try:
                reason = await asyncio.to_thread(self._look)
            except UnavailableError as exc:
                self.log.info("Waiting: %s", exc)
            except Exception as exc:
                self.log.exception("Unexpected %s; trying again", type(exc).__name__)
            else:
                yield TriggerEvent({"kind": "again", "reason": reason})
                return
            await asyncio.sleep(self.services.timing.mlflow_seconds)

    def _look(self) -> str:
        """Return what ended the wait. Raises UnavailableError while there is nothing to do but wait."""
        book = self.services.ledger
        book.jobs.touch(self.job_id, "admit: waiting for MLflow")
        job = book.jobs.get(self.job_id)
        if job.ended or job.cancel_requested_by is not None:
            return f"the job is {job.state}, or is to be cancelled"
        require_tracking(self.services)
        return "MLflow answers"
