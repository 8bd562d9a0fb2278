"""`python -m updraft.stack.airflow_scheduler`: Airflow's scheduler, with the heavy imports of tasks made once.

The executor (`airflow_executor`) forks each task from the scheduler. What is imported here is shared by all of them;
otherwise every task would spend seconds and its own memory on KubernetesPodOperator and the MLflow client. Great
Expectations is left out: one task needs it, and only when data has changed.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterable

from updraft.stack.airflow_wakeup import install

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
    "updraft.guardian.ending",
    "updraft.kubernetes.preflight",
    "updraft.ledger",
    "updraft.operators.reaper",
    "updraft.operators.requests",
    "updraft.operators.wiring",
    "updraft.storage.objects",
    "updraft.tracking.replay",
)


def preload(names: Iterable[str]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:  # a task that needs it will say so where people look
            logging.getLogger(__name__).warning("%s cannot be imported", name, exc_info=True)


def main() -> None:
    preload(PRELOADED)
    from airflow.configuration import conf  # takes seconds, and other modules import this one
    from airflow.jobs import scheduler_job_runner

    from updraft.storage.platform import warm_up

    warm_up()

    install(scheduler_job_runner, conf.get("database", "sql_alchemy_conn"))
    sys.argv = ["airflow", "scheduler", "--skip-serve-logs"]
    importlib.import_module("airflow.__main__").main()


if __name__ == "__main__":
    main()
