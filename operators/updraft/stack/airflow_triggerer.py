"""`python -m updraft.stack.airflow_triggerer`: Airflow's triggerer, with the imports of our triggers made once.

It forks the process whose event loop runs all triggers. Imported on first use there, they would hold up that loop, and
with it every job that is watched, for seconds after each start.
"""

from __future__ import annotations

import importlib
import resource
import sys
from contextlib import suppress

from updraft.airflow_seams.shared_imports import import_ahead

PRELOADED = (
    "airflow.api_fastapi.execution_api.app",  # which it asks in its own process
    "airflow.api_fastapi.execution_api.routes",
    "airflow.providers.cncf.kubernetes.hooks.kubernetes",
    "airflow.sdk.execution_time.task_runner",
    "kubernetes.client",
    "kubernetes_asyncio.client",
    "sqlalchemy",
    "updraft.manifest",
    "updraft.storage",
    "updraft.triggers.admit",
    "updraft.triggers.checkpoints",
    "updraft.triggers.gang",
    "updraft.triggers.reaper",
    "updraft.triggers.requests",
    "updraft.triggers.tracking",
)


FILES = 65_536  # each job's log is two: followed from the cluster, and its task's own; a system's default is 1,024


def allow_files() -> None:
    """Raise the limit of open files as far as the system allows, up to what is needed; the process that runs the
    triggers inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # macOS names no limit and has one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> None:
    allow_files()
    import_ahead(PRELOADED)
    from updraft.airflow_seams.trigger_events import install  # takes seconds, and other modules import this one

    install()
    sys.argv = ["airflow", "triggerer", "--skip-serve-logs"]
    importlib.import_module("airflow.__main__").main()


if __name__ == "__main__":
    main()
