"""Ends what nobody guards any more: learners of lost controllers, jobs whose run was deleted, messages not delivered.

Always one run, whose only task is deferred until there is something to do; each finished run is one act, with what was
done and why in its log and its result.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from updraft.lifecycle.workflow import REAPER_DAG
from updraft.operators.reaper import ReaperOperator
from updraft.timetables import AlwaysTimetable

with DAG(
    dag_id=REAPER_DAG,
    description="Removes what no job guards any more, and says why",
    schedule=AlwaysTimetable(),
    max_active_runs=1,
    catchup=False,
    is_paused_upon_creation=False,
    default_args={"owner": "updraft", "retries": 4, "retry_delay": timedelta(seconds=5)},
    tags=["updraft", "platform"],
    doc_md=__doc__,
) as dag:
    ReaperOperator(task_id="reap")
