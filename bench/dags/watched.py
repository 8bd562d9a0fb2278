"""One task that waits for a pod: what the triggers of bench/benchmarks/figures/triggers.py belong to.

Its runs are made by bench/programs/defer_pods.py, deferred as `train` is; nobody schedules them.
"""

from __future__ import annotations

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

with DAG(dag_id="watched", schedule=None, tags=["bench"], doc_md=__doc__):
    EmptyOperator(task_id="train")
