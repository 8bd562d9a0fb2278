"""Follow the checkpoints of a training until it ends, then list them in the job's MLflow run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from updraft.checkpoints import keep_of
from updraft.controller.records import manifest_of
from updraft.exceptions import RefusedError, UnavailableError
from updraft.operators.job import find_job, last_try, run_key
from updraft.operators.links import LINKS
from updraft.services import UsesServices
from updraft.triggers.checkpoints import CheckpointTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class WatchCheckpointsOperator(UsesServices, BaseOperator):
    """Follow the checkpoints of a training until it ends, then list them in the job's MLflow run.

    Args:
        train_task: The id of the task that trains.

    Defers to CheckpointTrigger. Never fails a job: the task that trains decides what missing checkpoints mean.
    """

    operator_extra_links = LINKS
    ui_color = "#fff3e0"

    def __init__(self, *, train_task: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.train_task = train_task

    def execute(self, context: Context) -> None:
        """Defer until the training has ended."""
        job = find_job(self.services, context)
        keep = keep_of(manifest_of(job))
        dag_id, run_id = run_key(context)
        self.defer(
            trigger=CheckpointTrigger(
                job_id=job.id, dag_id=dag_id, run_id=run_id, train_task=self.train_task, keep=keep
            ),
            method_name="finished",
        )

    def finished(self, context: Context, event: dict[str, Any]) -> None:
        """Log what became of the checkpoints, and write `checkpoints.json` to the MLflow run."""
        from updraft import tracking

        job = find_job(self.services, context)
        found = self.services.ledger.checkpoints.of_job(job.id, with_deleted=True, with_quarantined=True)
        kept = sum(c.deleted_at is None and c.quarantined_at is None for c in found)
        bad = [f"{c.name}: {c.quarantine_reason}" for c in found if c.quarantined_at is not None]
        self.log.info("%d checkpoint(s), %d kept%s", len(found), kept, f"; damaged: {'; '.join(bad)}" if bad else "")
        if not job.mlflow_run_id or not found:
            return
        rows = [
            {
                "name": c.name,
                "step": c.step,
                "attempt": c.attempt,
                "bytes": c.bytes,
                "uri": c.uri,
                "metrics": dict(c.metrics),
                "deleted": c.delete_reason,
                "quarantined": c.quarantine_reason,
            }
            for c in found
        ]
        try:
            tracking.log_json(self.services.tracking, job.mlflow_run_id, "checkpoints.json", rows)
        except (UnavailableError, RefusedError) as exc:
            if isinstance(exc, UnavailableError) and not last_try(context):
                raise
            self.log.warning("The run's list of checkpoints could not be written: %s", exc)
