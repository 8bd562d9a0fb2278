"""Halts a job: its learners save a checkpoint and stop, and what they held is free for others.

The job keeps its run, which waits. `resume_job` lets it go on from the checkpoint, `cancel_job` ends it. The same as
`updraft halt JOB`.
"""

from __future__ import annotations

from airflow.sdk import DAG

from updraft.lifecycle.workflow import HALT_DAG
from updraft.operators.requests import REQUEST_ARGS, RequestOperator, form

with DAG(
    dag_id=HALT_DAG,
    description="Asks a job to save a checkpoint and stop, to go on later",
    params=form("halt"),
    doc_md=__doc__,
    **REQUEST_ARGS,
) as dag:
    RequestOperator(task_id="halt", kind="halt")
