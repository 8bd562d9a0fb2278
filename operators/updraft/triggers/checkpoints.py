"""Watches a job's checkpoints in the store while its training runs: records each, applies retention.

Only the completion marker counts. It never fails a job; it ends when the train task has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

if TYPE_CHECKING:
    from updraft.ledger import Checkpoint

log = logging.getLogger(__name__)

POLL_SECONDS = 4.0
LAST_LOOKS = 5  # tries after the training's end while the store or the ledger is away
TRAIN_ENDS = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})


class CheckpointTrigger(BaseTrigger):
    """Fires `{"kind": "ended"}` when the train task of the run has ended and the last markers were read."""

    def __init__(
        self, *, job_id: str, dag_id: str, run_id: str, train_task: str, keep: Mapping[str, Any] | None
    ) -> None:
        super().__init__()
        self.job_id = job_id
        self.dag_id = dag_id
        self.run_id = run_id
        self.train_task = train_task
        self.keep = keep

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "updraft.triggers.checkpoints.CheckpointTrigger",
            {
                "job_id": self.job_id,
                "dag_id": self.dag_id,
                "run_id": self.run_id,
                "train_task": self.train_task,
                "keep": dict(self.keep) if self.keep else None,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        ended, last_looks = False, 0
        while True:
            try:
                # Asked first: what is stored before the end is seen by the look after it.
                ended = ended or await self._train_ended()
                for checkpoint in await asyncio.to_thread(follow_checkpoints, self.job_id, self.keep):
                    self.log.info(
                        "Checkpoint %s at step %d, %.1f MB", checkpoint.name, checkpoint.step, checkpoint.bytes / 1e6
                    )
                if ended:
                    break
            except Exception as exc:  # noqa: BLE001 - an unreachable store, ledger or Airflow: looked at again
                self.log.warning("Checkpoints could not be looked at: %s: %s", type(exc).__name__, str(exc)[:200])
                last_looks += ended
                if last_looks >= LAST_LOOKS:
                    break
            await asyncio.sleep(POLL_SECONDS)
        yield TriggerEvent({"kind": "ended"})

    async def _train_ended(self) -> bool:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
        from asgiref.sync import sync_to_async

        states = await sync_to_async(RuntimeTaskInstance.get_task_states)(
            dag_id=self.dag_id, task_ids=[self.train_task], run_ids=[self.run_id]
        )
        return states.get(self.run_id, {}).get(self.train_task) in TRAIN_ENDS


def follow_checkpoints(job_id: str, keep: Mapping[str, Any] | None) -> list[Checkpoint]:
    """Record the checkpoints that the store has and the ledger has not, delete what retention lets go and what came
    from an attempt that is over.

    Returns those that are new. Safe to run twice.
    """
    from updraft.checkpoints import Kept, retain
    from updraft.exceptions import StaleAttemptError
    from updraft.ledger import open_ledger
    from updraft.settings import settings
    from updraft.storage import objects

    ledger = open_ledger(settings().ledger_url)
    job = ledger.job(job_id)
    known = {c.name for c in ledger.checkpoints(job_id, with_deleted=True, with_quarantined=True)}
    fresh = []
    for info in objects.list_checkpoints(job.tenant, job_id):
        if info.name in known:
            continue
        try:
            checkpoint = ledger.record_checkpoint(
                job_id,
                name=info.name,
                step=info.step,
                attempt=info.attempt,
                metrics=info.metrics,
                bytes=info.bytes,
                uri=info.uri,
                created_at=info.created_at,
            )
        except StaleAttemptError as exc:  # from learners that were given up and live on somewhere
            log.warning("%s; it is removed", exc)
            objects.delete_checkpoint(job.tenant, job_id, info.name)
        else:
            fresh.append(checkpoint)
    if keep:
        live = [c for c in ledger.checkpoints(job_id) if c.deleted_at is None]
        let_go = retain([Kept(c.name, c.step, c.attempt, c.created_at, c.metrics) for c in live], **keep)
        for name, reason in let_go.items():
            objects.delete_checkpoint(job.tenant, job_id, name)
            ledger.mark_checkpoint_deleted(job_id, name, reason)
    return fresh
