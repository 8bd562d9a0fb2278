"""Wire the tasks of a job in their order, the same for every DAG that trains."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, Param, get_parsing_context
from airflow.sdk.definitions.param import ParamsDict

from updraft.lifecycle.workflow import (
    ADMIT_TASK,
    DEFAULT_TENANT,
    EVALUATE_ROLE,
    EVALUATE_TASK,
    EXPORT_ROLE,
    EXPORT_TASK,
    PROMOTE_TASK,
    REGISTER_TASK,
    RELEASE_TASK,
    STAGE_TASK,
    TRAIN_DAG,
    TRAIN_ROLE,
    TRAIN_TASK,
    VALIDATE_TASK,
    WATCH_TASK,
)
from updraft.manifest import Manifest, form_fields
from updraft.operators.admit import AdmitOperator
from updraft.operators.checkpoints import WatchCheckpointsOperator
from updraft.operators.learner import LearnerOperator
from updraft.operators.registry import PromoteOperator, RegisterOperator
from updraft.operators.release import ReleaseOperator
from updraft.operators.stage import StageOperator, ValidateOperator
from updraft.timetables import OnDemandTimetable, SeriesTimetable

# Airflow's retries are only for failures of the control plane; a job's own failure ends its task at once.
DEFAULT_ARGS: dict[str, Any] = {
    "owner": "updraft",
    "retries": 4,
    "retry_delay": timedelta(seconds=5),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=5),
    "weight_rule": "upstream",  # workers and triggerers serve jobs that have begun before jobs in the queue
}
# About two hours. After the launch, an outage of some part of the platform must not cost the work done, and the job has
# to be ended properly. Before the launch, an early error is better for the user.
PATIENT_RETRIES = 30
DAG_ARGS: dict[str, Any] = {
    "catchup": False,
    "default_args": DEFAULT_ARGS,
    "max_active_runs": 1000,  # the ledger limits running jobs, not Airflow
    "render_template_as_native_obj": False,
}


def params(base: Manifest | None = None, tenant: str = DEFAULT_TENANT) -> dict[str, Param]:
    """Return the trigger form as Airflow's params: flat fields in sections. `base` gives their default values, and
    `tenant` that of the tenant if there is no `base`.

    The process of a task other than `admit` gets no params: nothing reads them there, and Airflow would check each of
    them against its schema several times in each task.
    """
    if get_parsing_context().task_id not in (None, ADMIT_TASK):
        return {}
    fields = form_fields(base)
    if base is None and tenant != DEFAULT_TENANT:
        fields["tenant"] = replace(fields["tenant"], default=tenant)
    return {name: Param(field.default, **field.schema) for name, field in fields.items()}


def timetable(manifest: Manifest | None, dag_id: str = TRAIN_DAG) -> OnDemandTimetable | SeriesTimetable:
    """Return the timetable of the DAG `dag_id` of a manifest: the events of its series if it has a schedule, or none.
    Run ids begin with the manifest's name.
    """
    name = manifest.name if manifest is not None else "job"
    if manifest is None or manifest.schedule is None:
        return OnDemandTimetable.named(name)
    return SeriesTimetable.named(name, _asset(manifest, dag_id))


def _asset(manifest: Manifest, dag_id: str) -> Asset:
    """Return the asset whose events start the jobs of a series. Its watcher evaluates the manifest's schedule."""
    from updraft.triggers.series import SeriesTrigger  # imports the ledger, which other manifests do not need

    trigger = SeriesTrigger(
        tenant=manifest.tenant,
        series=manifest.name,
        dag_id=dag_id,
        rule=manifest.canonical()["schedule"],
        model=manifest.export.register_as if manifest.export else None,
    )
    return Asset(
        name=f"series {manifest.tenant}/{manifest.name}",
        uri=f"updraft://series/{manifest.tenant}/{manifest.name}",
        group="updraft",
        watchers=[AssetWatcher(name=f"schedule of {manifest.name}", trigger=trigger)],
    )


def train_tasks(dag: DAG, form: dict[str, Param], tenant: str) -> None:
    """Add the tasks of a training of the tenant to `dag`, and `form` as its params.

    In order: admit, stage_data, validate_data, train beside watch_checkpoints, evaluate, export_model, register_model,
    promote; then release, whatever happened.

        with DAG(dag_id="train_model", schedule=timetable(None), **DAG_ARGS) as dag:
            train_tasks(dag, params(), "default")
    """
    admit = AdmitOperator(task_id=ADMIT_TASK, form={name: field.value for name, field in form.items()}, tenant=tenant)
    stage = StageOperator(task_id=STAGE_TASK)
    validate = ValidateOperator(task_id=VALIDATE_TASK)
    train = LearnerOperator(task_id=TRAIN_TASK, role=TRAIN_ROLE, retries=PATIENT_RETRIES)
    watch = WatchCheckpointsOperator(task_id=WATCH_TASK, train_task=TRAIN_TASK, retries=PATIENT_RETRIES)
    evaluate = LearnerOperator(task_id=EVALUATE_TASK, role=EVALUATE_ROLE, retries=PATIENT_RETRIES)
    export = LearnerOperator(task_id=EXPORT_TASK, role=EXPORT_ROLE, trigger_rule="none_failed", retries=PATIENT_RETRIES)
    register = RegisterOperator(task_id=REGISTER_TASK, retries=PATIENT_RETRIES)
    promote = PromoteOperator(task_id=PROMOTE_TASK, retries=PATIENT_RETRIES)
    # With `on_failure_fail_dagrun` it would be the run's only leaf, and its success would turn a failed job's run
    # green.
    release = ReleaseOperator(task_id=RELEASE_TASK, retries=PATIENT_RETRIES).as_teardown()

    admit >> stage >> validate >> [train, watch]
    train >> evaluate >> export >> register >> promote
    [promote, watch] >> release
    # Only now: tasks created after this line would each copy the whole form, at every parse.
    dag.params = ParamsDict(form)
