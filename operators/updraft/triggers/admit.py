"""Wait in the queue until the planner has granted room for the whole gang.

A job that is halted while it waits leaves the queue. When it is resumed, it takes its place by its time of submission
again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from updraft.controller import queueing, user_requests
from updraft.exceptions import UnavailableError, UpdraftError
from updraft.lifecycle import State
from updraft.services import UsesServices
from updraft.triggers.queue import queue


class AdmitTrigger(UsesServices, BaseTrigger):
    """Wait in the queue for a job's whole gang.

    Args:
        conn_id: Airflow connection of the cluster.
        job_id: The job.

    Fires `{"kind": "granted" | "impossible" | "expired" | "cancelled", "reason": text}` once. If the cluster or the
    ledger cannot be reached, the wait only takes longer.
    """

    def __init__(self, *, conn_id: str, job_id: str) -> None:
        super().__init__()
        self.conn_id = conn_id
        self.job_id = job_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "updraft.triggers.admit.AdmitTrigger", {"conn_id": self.conn_id, "job_id": self.job_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        shown = ""
        with queue(self.services, self.conn_id).waiting(self.job_id, "admit: in the queue") as place:
            while True:
                try:
                    kind, reason = await asyncio.to_thread(self._look)
                except UnavailableError as exc:
                    self.log.warning("Waiting: %s", exc)
                    await asyncio.sleep(self.services.timing.admit_retry_seconds)
                    continue
                except UpdraftError as exc:  # for instance, the job left the queue: waiting does not help
                    kind, reason = "impossible", str(exc)
                except Exception as exc:
                    self.log.exception("Unexpected %s; trying again", type(exc).__name__)
                    await asyncio.sleep(self.services.timing.admit_retry_seconds)
                    continue
                if reason != shown:
                    self.log.info("%s: %s", kind, reason)
                    shown = reason
                if kind not in ("waiting", "unplanned", "halted"):
                    yield TriggerEvent({"kind": kind, "reason": reason})
                    return
                within = None if kind == "halted" else await asyncio.to_thread(self._wait_left)
                await place.look_again(self.log, at_first_plan=kind == "unplanned", within_seconds=within)

    def _wait_left(self) -> float | None:
        """Return for how many seconds the job may still wait; None: any time, or the ledger does not say it now."""
        try:
            return queueing.wait_left(self.services, self.job_id)
        except UpdraftError:
            return None

    def _look(self) -> tuple[str, str]:
        """Return what the job does now; what users ask of it is obeyed first."""
        job, _ = user_requests.wanted(self.services, self.job_id)
        if (
            job.state is State.HALTED
            and job.cancel_requested_by is None
            and user_requests.resumed(self.services, self.job_id) is None
        ):
            return "halted", "waiting for a resume or a cancellation"
        kind, reason = queueing.ask(self.services, self.job_id)
        if kind == "halt":
            return "halted" if user_requests.rest(self.services, self.job_id, None) else "waiting", reason
        return kind, reason
