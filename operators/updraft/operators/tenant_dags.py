"""Define the DAGs of a tenant (`train_model`, `halt_job`, `resume_job`, `cancel_job`), and one DAG per manifest.

The tenant of a job is that of the DAG whose run it is. Airflow's rights are those of a DAG, so that tenants with DAGs
of their own can be separated (`updraft.auth`). `dags/default.py` has those of the tenant `default`, whose names are
plain; `TenantDagBundle` writes such a file for each other tenant. `dags/jobs.py` has those of manifests.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import DAG, get_parsing_context

from updraft.lifecycle.workflow import (
    CANCEL_DAG,
    DEFAULT_TENANT,
    HALT_DAG,
    JOB_TAG,
    RESUME_DAG,
    TRAIN_DAG,
    job_dag,
    tenant_dag,
)

if TYPE_CHECKING:
    from updraft.ledger.records import RequestKind
    from updraft.manifest import JobFile

TRAIN_DOC = """Trains one model from a manifest: from admission to the registry.

Trigger it from this page's form, by REST, or with `updraft submit MANIFEST`. The run is the job's controller: it alone
drives the job to its end, and its run id is the job's id.
"""
HALT_DOC = """Halts a job: its learners save a checkpoint and stop, and what they held is free for others.

The job keeps its run, which waits. `resume_job` lets it go on from the checkpoint, `cancel_job` ends it. The same as
`updraft halt JOB`.
"""
RESUME_DOC = """Lets a halted job go on from its checkpoint: in the same run, and in the same run of MLflow.

Command, params, env, resources, budget and checkpoints may change on the way; whatever is wrong is named in the task's
log, and nothing changes. The same as `updraft resume JOB --set resources.memory=4GiB`.
"""
CANCEL_DOC = """Cancels a job: it ends as CANCELLED within seconds, for good. Its checkpoints, results and logs stay.

A job that shall go on later is halted instead. The same as `updraft cancel JOB`.
"""


def tenant_dags(tenant: str) -> dict[str, DAG]:
    """Return the DAGs of a tenant by id. In the process of a task only that task's DAG is made, so that a task starts
    sooner."""
    made: dict[str, Callable[[str], DAG]] = {
        tenant_dag(TRAIN_DAG, tenant): partial(_train, tenant),
        tenant_dag(HALT_DAG, tenant): partial(_request, tenant, "halt", "Asks a job to stop, to go on later", HALT_DOC),
        tenant_dag(RESUME_DAG, tenant): partial(_request, tenant, "resume", "Lets a halted job go on", RESUME_DOC),
        tenant_dag(CANCEL_DAG, tenant): partial(_request, tenant, "cancel", "Ends a job as CANCELLED", CANCEL_DOC),
    }
    wanted = get_parsing_context().dag_id
    return {dag_id: make(dag_id) for dag_id, make in made.items() if wanted in (None, dag_id)}


def manifest_dags(jobs: Path) -> dict[str, DAG]:
    """Return the DAG of each manifest in a folder of jobs, by id; in the process of a task only that task's DAG.

    Args:
        jobs: The folder; manifests are `<jobs>/<name>/manifest.yaml`.
    """
    from updraft.manifest import load_jobs

    wanted = get_parsing_context().dag_id
    found = ((job_dag(job.path.parent.name, job.tenant), job) for job in load_jobs(jobs))
    return {dag_id: _manifest(dag_id, job) for dag_id, job in found if wanted in (None, dag_id)}


def _train(tenant: str, dag_id: str) -> DAG:
    from updraft.operators.wiring import DAG_ARGS, params, timetable, train_tasks

    with DAG(
        dag_id=dag_id,
        description="One manifest in, one verified model in the registry out",
        schedule=timetable(None),
        tags=_tags(tenant),
        doc_md=TRAIN_DOC,
        **DAG_ARGS,
    ) as dag:
        train_tasks(dag, params(tenant=tenant), tenant)
    return dag


def _request(tenant: str, kind: RequestKind, description: str, doc: str, dag_id: str) -> DAG:
    from updraft.operators.requests import REQUEST_ARGS, RequestOperator, form

    dag = DAG(dag_id=dag_id, description=description, params=form(kind), tags=_tags(tenant), doc_md=doc, **REQUEST_ARGS)
    RequestOperator(task_id=kind, kind=kind, tenant=tenant, dag=dag)
    return dag


def _manifest(dag_id: str, job: JobFile) -> DAG:
    """Return the DAG of a manifest: its own page, history, form and schedule. A manifest that is wrong still gets its
    page: tagged `wrong-manifest`, with every wrong field in its documentation, and an empty form, so that a run of it
    ends at once."""
    from updraft.operators.wiring import DAG_ARGS, params, timetable, train_tasks

    manifest = job.manifest
    with DAG(
        dag_id=dag_id,
        description=(manifest.description or f"Trains {manifest.name}") if manifest else "The manifest is wrong",
        schedule=timetable(manifest, dag_id),
        tags=[*_tags(job.tenant), JOB_TAG, *([] if manifest else ["wrong-manifest"])],
        doc_md=f"`{job.path.name}` in `jobs/{job.path.parent.name}`" if manifest else f"```\n{job.error}\n```",
        **DAG_ARGS,
    ) as dag:
        train_tasks(dag, params(manifest, job.tenant), job.tenant)
    return dag


def _tags(tenant: str) -> list[str]:
    return ["updraft"] if tenant == DEFAULT_TENANT else ["updraft", f"tenant:{tenant}"]
