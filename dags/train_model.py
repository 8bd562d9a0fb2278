"""Trains one model from a manifest: from admission to the registry.

Trigger it from this page's form, by REST, or with `updraft submit MANIFEST`. The run is the job's controller: it alone
drives the job to its end, and its run id is the job's id.
"""

from __future__ import annotations

import airflow.providers.cncf.kubernetes.operators.pod  # noqa: F401 - pre-imported once by the DAG processor
from airflow.sdk import DAG

from updraft.lifecycle.workflow import TRAIN_DAG
from updraft.operators.wiring import DAG_ARGS, params, timetable, train_tasks

with DAG(
    dag_id=TRAIN_DAG,
    description="One manifest in, one verified model in the registry out",
    schedule=timetable(None),
    tags=["updraft"],
    doc_md=__doc__,
    **DAG_ARGS,
) as dag:
    train_tasks(dag, params())
