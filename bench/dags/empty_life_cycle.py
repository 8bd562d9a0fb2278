"""As many tasks and deferrals as a job's life cycle, in the same order, and nothing to do in any of them.

A job that waits for nothing defers in four tasks: train, watch_checkpoints, evaluate and export_model. Here each of
these defers to a trigger of Airflow's own that fires at once. For bench/benchmarks/figures/orchestration.py.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import DAG, BaseOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class Nothing(BaseOperator):
    def execute(self, context: Context) -> None:
        pass


class DeferOnce(BaseOperator):
    def execute(self, context: Context) -> None:
        self.defer(trigger=DateTimeTrigger(moment=datetime.now(UTC)), method_name="resume")

    def resume(self, context: Context, event: Any) -> None:
        pass


with DAG(dag_id="empty_life_cycle", schedule=None, tags=["bench"], doc_md=__doc__):
    admit, stage, validate = (Nothing(task_id=name) for name in ("admit", "stage_data", "validate_data"))
    train, watch = DeferOnce(task_id="train"), DeferOnce(task_id="watch_checkpoints")
    evaluate, export = DeferOnce(task_id="evaluate"), DeferOnce(task_id="export_model")
    register, promote = Nothing(task_id="register_model"), Nothing(task_id="promote")
    release = Nothing(task_id="release").as_teardown()

    admit >> stage >> validate >> [train, watch]
    train >> evaluate >> export >> register >> promote
    [promote, watch] >> release
