"""Waits in line: asks the allocator under the ledger's lock until the whole gang is granted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from updraft.exceptions import UnavailableError, UpdraftError

POLL_SECONDS = 1.5


class AdmitTrigger(BaseTrigger):
    """Fires `{"kind": "granted" | "impossible" | "cancelled", "reason": ...}`.

    A cluster or ledger that cannot be reached only lengthens the wait.
    """

    def __init__(self, *, conn_id: str, job_id: str) -> None:
        super().__init__()
        self.conn_id = conn_id
        self.job_id = job_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "updraft.triggers.admit.AdmitTrigger", {"conn_id": self.conn_id, "job_id": self.job_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook
        from kubernetes_asyncio.client import ApiClient

        hook = AsyncKubernetesHook(conn_id=self.conn_id)
        await hook._load_config()
        shown = ""
        async with ApiClient(configuration=hook.client_configuration) as api:
            while True:
                try:
                    kind, reason = await self._ask(api)
                except UnavailableError as exc:
                    kind, reason = "waiting", str(exc)
                except UpdraftError as exc:  # such as a job that left the line: waiting does not help
                    kind, reason = "impossible", str(exc)
                except Exception as exc:  # noqa: BLE001 - an unreachable cluster or ledger: go on waiting
                    kind, reason = "waiting", f"the cluster or the ledger cannot be asked: {type(exc).__name__}"
                if reason != shown:
                    self.log.info("%s: %s", kind, reason)
                    shown = reason
                if kind != "waiting":
                    yield TriggerEvent({"kind": kind, "reason": reason})
                    return
                await asyncio.sleep(POLL_SECONDS)

    async def _ask(self, api: Any) -> tuple[str, str]:
        from kubernetes_asyncio.client import CoreV1Api

        nodes = await CoreV1Api(api).list_node(_request_timeout=20)
        listed = api.sanitize_for_serialization(nodes)["items"]
        return await asyncio.to_thread(ask, self.job_id, listed)


def ask(job_id: str, nodes: list[dict[str, Any]]) -> tuple[str, str]:
    """One question to the allocator: `granted`, `impossible`, `cancelled` or `waiting`, and why.

    The reason for waiting is written to the ledger as the QUEUED job's reason.
    """
    from updraft.allocation import capacity_from_nodes
    from updraft.ledger import open_ledger
    from updraft.lifecycle import State
    from updraft.settings import settings

    ledger = open_ledger(settings().ledger_url)
    job = ledger.job(job_id)
    if job.ended:
        return "impossible", f"job {job_id} has ended {job.state.value}"
    if job.cancel_requested_by is not None:
        return "cancelled", f"cancelled by {job.cancel_requested_by}"
    admission = ledger.try_admit(job_id, capacity_from_nodes(nodes))
    if admission.granted:
        return "granted", "the whole gang has its place"
    if admission.impossible:
        return "impossible", admission.reason
    ledger.move(job_id, State.QUEUED, admission.reason, {"place": admission.place})
    return "waiting", admission.reason
