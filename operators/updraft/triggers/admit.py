"""Waits in line: asks the allocator under the ledger's lock until the whole gang is granted.

A job that is halted while it waits leaves the line, and joins its end when it is resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from updraft.exceptions import UnavailableError, UpdraftError
from updraft.guardian import line, requests
from updraft.guardian.records import ledger
from updraft.kubernetes.nodes import nodes_of
from updraft.lifecycle import State

POLL_SECONDS = 1.5
HALTED_SECONDS = 2.0


class AdmitTrigger(BaseTrigger):
    """Waits in the queue for a job's whole gang.

    Args:
        conn_id: Airflow connection of the cluster.
        job_id: the job.

    Fires `{"kind": "granted" | "impossible" | "cancelled", "reason": text}` once. A cluster or ledger that cannot be
    reached only lengthens the wait.
    """

    def __init__(self, *, conn_id: str, job_id: str) -> None:
        super().__init__()
        self.conn_id = conn_id
        self.job_id = job_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "updraft.triggers.admit.AdmitTrigger", {"conn_id": self.conn_id, "job_id": self.job_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        shown = ""
        while True:
            try:
                kind, reason = await self._ask()
            except UnavailableError as exc:
                kind, reason = "waiting", str(exc)
            except UpdraftError as exc:  # such as a job that left the line: waiting does not help
                kind, reason = "impossible", str(exc)
            except Exception as exc:  # noqa: BLE001 - an unreachable ledger: go on waiting
                kind, reason = "waiting", f"the ledger cannot be asked: {type(exc).__name__}"
            if reason != shown:
                self.log.info("%s: %s", kind, reason)
                shown = reason
            if kind == "halted":
                await asyncio.sleep(HALTED_SECONDS)
                continue
            if kind != "waiting":
                yield TriggerEvent({"kind": kind, "reason": reason})
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _ask(self) -> tuple[str, str]:
        if await asyncio.to_thread(self._halted):
            return "halted", "waiting for a resume or a cancellation"
        try:
            nodes = await nodes_of(self.conn_id)
        except UnavailableError as exc:
            ask = partial(line.ask_without_cluster, self.job_id, str(exc))
        else:
            ask = partial(line.ask, self.job_id, nodes)
        kind, reason = await asyncio.to_thread(ask)
        if kind == "halt":
            rested = await asyncio.to_thread(requests.rest, self.job_id, None)
            return "halted" if rested else "waiting", reason
        return kind, reason

    def _halted(self) -> bool:
        """Whether the job is halted still, now that its requests have been looked at."""
        ledger().touch_guardian(self.job_id, "admit: in line")
        job, _ = requests.wanted(self.job_id)
        if job.state is not State.HALTED or job.cancel_requested_by is not None:
            return False
        return requests.resumed(self.job_id) is None
