"""`python -m updraft.stack.airflow_triggerer`: Airflow's triggerer, which imports what our triggers need once.

It forks the process whose event loop runs all triggers. Imports on first use would block that loop, and with it every
watched job, for seconds after each start.
"""

from __future__ import annotations

import importlib
import resource
import sys
from contextlib import suppress

from updraft.airflow_seams.shared_imports import import_ahead

PRELOADED = (
    "airflow.api_fastapi.execution_api.app",  # the execution API, which the triggerer runs in its own process
    "airflow.api_fastapi.execution_api.routes",
    "airflow.providers.cncf.kubernetes.hooks.kubernetes",
    "airflow.sdk.execution_time.task_runner",
    "kubernetes.client",
    "kubernetes_asyncio.client",
    "sqlalchemy",
    "updraft.manifest",
    "updraft.storage",
    "updraft.triggers.admit",
    "updraft.triggers.approval",
    "updraft.triggers.checkpoints",
    "updraft.triggers.gang",
    "updraft.triggers.reaper",
    "updraft.triggers.requests",
    "updraft.triggers.rounds",
    "updraft.triggers.series",
    "updraft.triggers.tracking",
)


FILES = 65_536  # a job needs two logs, the cluster's and its task's; a usual default is 1,024


def allow_files() -> None:
    """Raise the limit of open files as far as the system allows, up to what is needed; the process that runs the
    triggers inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS reports no limit but enforces one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> None:
    allow_files()
    import_ahead(PRELOADED)
    from updraft.airflow_seams.trigger_events import install  # late: it takes seconds; others import this module

    install()
    sys.argv = ["airflow", "triggerer", "--skip-serve-logs"]
    importlib.import_module("airflow.__main__").main()


if __name__ == "__main__":
    main()
