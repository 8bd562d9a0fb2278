"""Watch a job's checkpoints in the store while its training runs: record each, and apply retention.

Only checkpoints with a completion marker count, and only those of the open attempt. Checkpoints that an earlier attempt
stores later are removed; damaged ones are quarantined. The trigger never fails a job; it ends after the train task.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from updraft.lifecycle.workflow import TRAIN_ROLE
from updraft.recovery.failure_class import FailureClass
from updraft.services import UsesServices
from updraft_learner.checkpoint_names import parse_name

if TYPE_CHECKING:
    from updraft.ledger import Checkpoint, Job
    from updraft.services import Services
    from updraft.storage.objects import CheckpointInfo

log = logging.getLogger(__name__)

LAST_LOOKS = 5  # tries after the training's end while the store or the ledger does not answer
TRAIN_ENDS = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})


class CheckpointTrigger(UsesServices, BaseTrigger):
    """Record a training's checkpoints and apply retention until the training has ended.

    Args:
        job_id: The job.
        dag_id: The DAG of its run.
        run_id: Its run.
        train_task: The id of the task that trains.
        keep: The manifest's `checkpoints.keep` as JSON; None keeps every checkpoint.

    Fires `{"kind": "ended"}` once, after the training has ended and its last checkpoints were read.
    """

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
        await self._follow()
        yield TriggerEvent({"kind": "ended"})

    async def _follow(self) -> None:
        timing = self.services.timing
        ended, last_looks, next_look = False, 0, timing.clock() + timing.checkpoint_looks.turn_seconds()
        while True:
            try:
                # Ask first: then the look that follows also sees what was stored just before the end.
                ended = ended or await self._train_ended()
                if not ended and timing.clock() < next_look:
                    await asyncio.sleep(timing.training_end_looks.turn_seconds())
                    continue
                next_look = timing.clock() + timing.checkpoint_looks.turn_seconds()
                for checkpoint in await asyncio.to_thread(follow_checkpoints, self.services, self.job_id, self.keep):
                    self.log.info(
                        "Checkpoint %s at step %d, %.1f MB", checkpoint.name, checkpoint.step, checkpoint.bytes / 1e6
                    )
                if ended:
                    break
            except Exception as exc:  # noqa: BLE001 - the store, the ledger or Airflow cannot be reached: try again
                self.log.warning("Checkpoints could not be looked at: %s: %s", type(exc).__name__, str(exc)[:200])
                last_looks += ended
                if last_looks >= LAST_LOOKS:
                    break
            await asyncio.sleep(timing.training_end_looks.turn_seconds())

    async def _train_ended(self) -> bool:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
        from asgiref.sync import sync_to_async

        states = await sync_to_async(RuntimeTaskInstance.get_task_states)(
            dag_id=self.dag_id, task_ids=[self.train_task], run_ids=[self.run_id]
        )
        return states.get(self.run_id, {}).get(self.train_task) in TRAIN_ENDS


def follow_checkpoints(services: Services, job_id: str, keep: Mapping[str, Any] | None) -> list[Checkpoint]:
    """Bring ledger and object store to agree, and return the checkpoints that are new.

    Records new checkpoints, refuses late ones of an older attempt, quarantines corrupt ones, and deletes those that
    retention does not keep or that can never be completed. `keep` is the manifest's as it was submitted. It may run
    twice, and at the same time in several processes.
    """
    from updraft.checkpoints import keep_of
    from updraft.controller.records import manifest_of
    from updraft.storage import objects

    ledger = services.ledger
    job = ledger.jobs.get(job_id)
    if job.revision:
        keep = keep_of(manifest_of(job))
    # Read before the store: an unfinished checkpoint of an attempt that has already ended is never completed.
    closed = {
        attempt.number
        for attempt in ledger.attempts.of_job(job_id)
        if attempt.role == TRAIN_ROLE and attempt.ended_at is not None
    }
    known = {c.name: c for c in ledger.checkpoints.of_job(job_id, with_deleted=True, with_quarantined=True)}
    good = {c.name: c.bytes for c in known.values() if c.deleted_at is None and c.quarantined_at is None}
    seen = objects.look_at_checkpoints(job.tenant, job_id, sure=good, store=services.store)
    fresh = []
    for info in seen.whole:
        before = known.get(info.name)
        if before is None:
            fresh += _record(services, job, info)
        elif before.deleted_at is not None:  # slow learners stored it again
            objects.delete_checkpoint(job.tenant, job_id, info.name, store=services.store)
        elif before.quarantined_at is not None:
            objects.quarantine_checkpoint(
                job.tenant, job_id, info.name, before.quarantine_reason or "", store=services.store
            )
    lost = good.keys() - {info.name for info in seen.whole} - seen.sure
    for name in sorted(lost | seen.damaged.keys()):
        _set_aside(services, job, name, closed)
    for name in sorted(seen.unfinished):
        if name in known:
            if known[name].deleted_at is not None:  # a part of it: the process that deleted it died
                objects.delete_checkpoint(job.tenant, job_id, name, store=services.store)
        elif _attempt_of(name) in closed:
            log.info("Checkpoint %s of %s was never completed, and is removed: its attempt is over", name, job_id)
            objects.delete_checkpoint(job.tenant, job_id, name, store=services.store)
    if keep:
        _prune(services, job, keep)
    return fresh


def _record(services: Services, job: Job, info: CheckpointInfo) -> list[Checkpoint]:
    """Return the checkpoint, or nothing if the ledger refuses it; then it counts no more in the store either."""
    from updraft.exceptions import RefusedError, StaleAttemptError
    from updraft.storage import objects

    try:
        return [
            services.ledger.checkpoints.record(
                job.id,
                name=info.name,
                step=info.step,
                attempt=info.attempt,
                metrics=info.metrics,
                bytes=info.bytes,
                uri=info.uri,
                created_at=info.created_at,
            )
        ]
    except StaleAttemptError as exc:  # it comes from learners that were given up but still run
        log.warning("%s; it is removed", exc)
        objects.delete_checkpoint(job.tenant, job.id, info.name, store=services.store)
    except RefusedError as exc:
        log.warning("Checkpoint %s of %s is set aside: %s", info.name, job.id, exc)
        objects.quarantine_checkpoint(job.tenant, job.id, info.name, str(exc), store=services.store)
    return []


def _set_aside(services: Services, job: Job, name: str, closed: Collection[int]) -> None:
    """Set a checkpoint aside if it is still damaged when it is looked at alone: a listing is not of one moment."""
    from updraft.storage import objects

    looked = objects.look_at_checkpoints(job.tenant, job.id, only=name, store=services.store)
    recorded = services.ledger.checkpoints.of_job(job.id, with_deleted=True, with_quarantined=True)
    known = next((c for c in recorded if c.name == name), None)
    reason = looked.damaged.get(name)
    if reason is None and known is not None and name not in {info.name for info in looked.whole}:
        reason = "it is not in the store any more"
    if reason is None:
        return
    if (known is not None and known.deleted_at is not None) or (known is None and _attempt_of(name) in closed):
        objects.delete_checkpoint(job.tenant, job.id, name, store=services.store)
        return
    log.warning("Checkpoint %s of %s is damaged, and set aside: %s", name, job.id, reason)
    if known is not None:
        services.ledger.checkpoints.quarantine(job.id, name, reason)
    objects.quarantine_checkpoint(job.tenant, job.id, name, reason, store=services.store)


def _prune(services: Services, job: Job, keep: Mapping[str, Any]) -> None:
    from updraft.checkpoints import Kept, learner_of, retain
    from updraft.storage import objects

    training = [attempt for attempt in services.ledger.attempts.of_job(job.id) if attempt.role == TRAIN_ROLE]
    newest = training[-1] if training else None
    if (
        newest is not None
        and newest.ended_at is not None
        and (newest.relaunch or newest.outcome == FailureClass.HALTED)
    ):
        return  # another attempt follows, and the checkpoint that it resumes from is not chosen yet
    protected = {str(newest.resume.checkpoint)} if newest is not None and newest.resume is not None else set()
    counts: Counter[int] = Counter()
    live = []
    recorded = services.ledger.checkpoints.of_job(job.id, with_deleted=True, with_quarantined=True)
    for c in sorted(recorded, key=lambda c: (c.verified_at or c.created_at, c.name)):
        learner = learner_of(c.name)
        counts[learner] += 1
        if c.deleted_at is None and c.quarantined_at is None:
            live.append(Kept(c.name, c.step, c.attempt, c.created_at, c.metrics, learner, counts[learner]))
    for name, reason in retain(live, **keep, protected=protected).items():
        # In this order: a checkpoint missing in the store but not marked in the ledger would count as damaged.
        services.ledger.checkpoints.mark_deleted(job.id, name, reason)
        objects.delete_checkpoint(job.tenant, job.id, name, store=services.store)


def _attempt_of(name: str) -> int | None:
    parsed = parse_name(name)
    return None if parsed is None else parsed.attempt
