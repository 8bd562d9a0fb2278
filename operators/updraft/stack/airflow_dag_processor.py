"""`python -m updraft.stack.airflow_dag_processor`: Airflow's DAG processor, which imports what our DAGs need once.

It forks a process for each parse of each file. Airflow itself would import only the `airflow.*` modules that a file
names before the fork.
"""

from __future__ import annotations

import importlib
import sys

from updraft.airflow_seams.shared_imports import import_ahead
from updraft.manifest import load_jobs
from updraft.stack.layout import find_repository

PRELOADED = (
    "airflow.providers.cncf.kubernetes.operators.pod",
    "updraft.operators.reaper",
    "updraft.operators.requests",
    "updraft.operators.rounds",
    "updraft.operators.wiring",
)


def prepare() -> None:
    """Do what every parse would do again."""
    if not import_ahead(PRELOADED):
        return
    if "updraft.operators.wiring" in sys.modules:
        sys.modules["updraft.operators.wiring"].params()  # fills the module's cache of the manifest's schema
        load_jobs(find_repository() / "jobs")  # fills the cache of their suites


def main() -> None:
    prepare()
    sys.argv = ["airflow", "dag-processor"]
    importlib.import_module("airflow.__main__").main()


if __name__ == "__main__":
    main()
