"""Looks after what nobody guards: waits until there is something to reap or to tell, and says what.

It only finds; the reaper's task does the work. Witnesses are the ledger, the pods, and Airflow's word on the runs of
those jobs that nobody has touched for a while. Whether that is enough is `updraft.recovery.reaping`'s decision.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from updraft.guardian.records import ledger
from updraft.kubernetes.watch import PodWatch, shared_watch
from updraft.recovery.reaping import Reap, Run, Ward, WardPod, reap
from updraft.settings import settings

if TYPE_CHECKING:
    from updraft.ledger import Job

LOOK_SECONDS = 15.0
ASK_AFTER_SECONDS = 60.0  # Airflow is asked about a job that nobody has touched for so long
UNTOLD_SECONDS = 30.0  # a message is left to its own job's tasks for so long


class ReaperTrigger(BaseTrigger):
    """Fires `{"reap": {job id: {"reason", "pods", "end", ...}}, "untold": [job ids]}` when one of them is not empty."""

    def __init__(self, *, conn_id: str) -> None:
        super().__init__()
        self.conn_id = conn_id
        self._touched: dict[str, tuple[object, float]] = {}  # job -> guardian's last word, first read at
        self._untold: dict[str, float] = {}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "updraft.triggers.reaper.ReaperTrigger", {"conn_id": self.conn_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        async with AsyncExitStack() as stack:
            watches = {
                tenant: await stack.enter_async_context(shared_watch(self.conn_id, settings().namespace(tenant)))
                for tenant in settings().tenants
            }
            while True:
                try:
                    found = await self._look(watches)
                except Exception as exc:  # noqa: BLE001 - outermost line: what cannot be seen is looked at again
                    self.log.warning("The reaper cannot see: %s: %s", type(exc).__name__, str(exc)[:200])
                else:
                    if any(found.values()):
                        yield TriggerEvent(found)
                        return
                await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, watches: Mapping[str, PodWatch]) -> dict[str, Any]:
        live = {job.id: job for job in await asyncio.to_thread(ledger().live_jobs)}
        pods: dict[str, list[WardPod]] = {}
        for watch in watches.values():
            if watch.synced.is_set():  # otherwise what is shown may be of long ago
                for (job_id, role, attempt), found in watch.launches().items():
                    number = int(attempt) if attempt.isdigit() else 0
                    pods.setdefault(job_id, []).extend(WardPod(pod.name, role, number) for pod in found)
        now = time.monotonic()
        self._touched = {name: seen for name, seen in self._touched.items() if name in live}
        wards = [await self._ward(live.get(name), name, tuple(pods.get(name, ())), now) for name in live | pods]
        decided = {ward.job_id: reap(ward) for ward in wards if ward is not None}
        return {
            "reap": {
                job_id: {
                    "reason": act.reason,
                    "pods": list(act.pods),
                    "end": act.end,
                    "evidence": dict(act.evidence),
                    "guardian_seen": _text(live.get(job_id)),
                }
                for job_id, act in decided.items()
                if isinstance(act, Reap)
            },
            "untold": await asyncio.to_thread(self._waiting_messages, now),
        }

    async def _ward(self, job: Job | None, job_id: str, pods: tuple[WardPod, ...], now: float) -> Ward | None:
        if job is None:  # ended, or never recorded here: its pods alone are the question
            state = await asyncio.to_thread(self._state_of, job_id)
            return Ward(job_id, state, 0.0, Run.UNKNOWN, pods=pods)
        word = job.guardian_seen_at
        known = self._touched.get(job_id)
        if known is None or known[0] != word:
            known = self._touched[job_id] = (word, now)
        quiet = now - known[1]
        newest = await asyncio.to_thread(self._newest, job_id) if pods else {}
        run: Run = Run.UNKNOWN
        tasks: dict[str, str | None] = {}
        dag: bool | None = None
        if quiet >= ASK_AFTER_SECONDS:
            run, tasks, dag = await self._ask_airflow(job)
        return Ward(job_id, job.state, quiet, run, tasks=tasks, dag=dag, pods=pods, newest=newest)

    def _state_of(self, job_id: str) -> Any:
        from updraft.exceptions import NotFoundError

        try:
            return ledger().job(job_id).state
        except NotFoundError:
            return None

    def _newest(self, job_id: str) -> dict[str, int]:
        newest: dict[str, int] = {}
        for attempt in ledger().attempts(job_id):
            newest[attempt.role] = max(newest.get(attempt.role, 0), attempt.number)
        return newest

    def _waiting_messages(self, now: float) -> list[str]:
        waiting = {message.job_id for message in ledger().outbox(limit=100)}
        self._untold = {job_id: self._untold.get(job_id, now) for job_id in waiting}
        return sorted(job_id for job_id, since in self._untold.items() if now - since >= UNTOLD_SECONDS)

    async def _ask_airflow(self, job: Job) -> tuple[Run, dict[str, str | None], bool | None]:
        """State of the run and of its tasks, and whether its DAG exists. What Airflow does not say is UNKNOWN."""
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
        from asgiref.sync import sync_to_async

        try:
            state = await sync_to_async(RuntimeTaskInstance.get_dagrun_state)(job.dag_id, job.run_id)
        except Exception as exc:  # noqa: BLE001 - told apart by what it says
            if "not_found" in str(exc).lower() or "404" in str(exc):
                return Run.GONE, {}, None
            return Run.UNKNOWN, {}, None
        run = Run(state) if state in set(Run) else Run.UNKNOWN
        tasks = await sync_to_async(RuntimeTaskInstance.get_task_states)(dag_id=job.dag_id, run_ids=[job.run_id])
        return run, dict(tasks.get(job.run_id) or {}), await self._has_dag(job.dag_id)

    async def _has_dag(self, dag_id: str) -> bool | None:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
        from asgiref.sync import sync_to_async

        try:
            dag = await sync_to_async(RuntimeTaskInstance.get_dag)(dag_id)
        except Exception as exc:  # noqa: BLE001 - told apart by what it says
            return False if "not_found" in str(exc).lower() or "404" in str(exc) else None
        return not getattr(dag, "is_stale", False)


def _text(job: Job | None) -> str | None:
    """The guardian's last touch, so that the task sees whether it has come back since."""
    return None if job is None or job.guardian_seen_at is None else job.guardian_seen_at.isoformat()
