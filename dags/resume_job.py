"""Lets a halted job go on from its checkpoint: in the same run, and in the same run of MLflow.

Command, params, env, resources, budget and checkpoints may change on the way; whatever is wrong is named in the task's
log, and nothing changes. The same as `updraft resume JOB --set resources.memory=4GiB`.
"""

from __future__ import annotations

from airflow.sdk import DAG

from updraft.lifecycle.workflow import RESUME_DAG
from updraft.operators.requests import REQUEST_ARGS, RequestOperator, form

with DAG(
    dag_id=RESUME_DAG,
    description="Lets a halted job go on, as it was or with changes",
    params=form("resume"),
    doc_md=__doc__,
    **REQUEST_ARGS,
) as dag:
    RequestOperator(task_id="resume", kind="resume")
