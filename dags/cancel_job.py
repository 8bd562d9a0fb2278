"""Cancels a job: it ends as CANCELLED within seconds, for good. Its checkpoints, results and logs stay.

A job that shall go on later is halted instead. The same as `updraft cancel JOB`.
"""

from __future__ import annotations

from airflow.sdk import DAG

from updraft.lifecycle.workflow import CANCEL_DAG
from updraft.operators.requests import REQUEST_ARGS, RequestOperator, form

with DAG(
    dag_id=CANCEL_DAG,
    description="Asks a job to end as CANCELLED",
    params=form("cancel"),
    doc_md=__doc__,
    **REQUEST_ARGS,
) as dag:
    RequestOperator(task_id="cancel", kind="cancel")
