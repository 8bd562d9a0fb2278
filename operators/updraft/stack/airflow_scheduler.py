"""`python -m updraft.stack.airflow_scheduler`: Airflow's scheduler, which imports the heavy libraries of tasks once.

The executor (`updraft.airflow_seams.task_processes`) forks each task from the scheduler, so all tasks share what is
imported here. Otherwise every task would spend seconds, and memory of its own, on KubernetesPodOperator and the MLflow
client. Great Expectations is left out: one task needs it, and only if data has changed.

Before it starts, it closes the records of schedulers that died on this host, so that their tasks are free at once.
"""

from __future__ import annotations

import importlib
import os
import sys

from updraft.airflow_seams.dead_schedulers import free_tasks_of_dead_schedulers
from updraft.airflow_seams.scheduler_sleep import install
from updraft.airflow_seams.shared_imports import import_ahead

PRELOADED = (
    "airflow.dag_processing.bundles.manager",
    "airflow.dag_processing.dagbag",
    "airflow.providers.cncf.kubernetes.operators.pod",
    "airflow.sdk.execution_time.task_runner",
    "httpx",
    "kubernetes.client",
    "mlflow.store.tracking.rest_store",
    "mlflow.tracking.request_auth.registry",
    "mlflow.tracking.request_header.registry",
    "sqlalchemy",
    "updraft.controller.ending",
    "updraft.kubernetes.preflight",
    "updraft.ledger",
    "updraft.operators.reaper",
    "updraft.operators.requests",
    "updraft.operators.rounds",
    "updraft.operators.wiring",
    "updraft.storage.objects",
    "updraft.tracking.replay",
)


LINEAGE = ("airflow.providers.openlineage.plugins.listener",)


def main() -> None:
    if import_ahead((*PRELOADED, *(LINEAGE if os.environ.get("OPENLINEAGE_URL") else ()))):
        from updraft.storage.platform import warm_up

        warm_up()
    from airflow.configuration import conf  # imported late: it takes seconds, and other modules import this one
    from airflow.jobs import scheduler_job_runner

    install(scheduler_job_runner, conf.get("database", "sql_alchemy_conn"))
    free_tasks_of_dead_schedulers()
    sys.argv = ["airflow", "scheduler", "--skip-serve-logs"]
    importlib.import_module("airflow.__main__").main()


if __name__ == "__main__":
    main()
