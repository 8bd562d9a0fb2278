"""Reports each round in which elastic jobs got other sizes: what changed, why, what it should bring, what it brought.

Always one run. Its only task is deferred until the results of the next round are known; its log and its result are that
round. The page of sizes shows the rounds whose results are still awaited.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from updraft.lifecycle.workflow import SIZES_DAG
from updraft.operators.rounds import ReportRoundOperator
from updraft.timetables import AlwaysTimetable

with DAG(
    dag_id=SIZES_DAG,
    description="Reports how the sizes of elastic jobs change, and what that brings",
    schedule=AlwaysTimetable(),
    max_active_runs=1,
    catchup=False,
    is_paused_upon_creation=False,
    default_args={"owner": "updraft", "retries": 4, "retry_delay": timedelta(seconds=5)},
    tags=["updraft", "platform"],
    doc_md=__doc__,
) as dag:
    ReportRoundOperator(task_id="report")
