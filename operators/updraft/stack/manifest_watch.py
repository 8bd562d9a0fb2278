"""Make Airflow see a changed manifest in `jobs/` within seconds, although it parses unchanged DAG files only every five
minutes.

Airflow parses a file that is newer than its last parse, but does not know the manifests that `dags/jobs.py` reads.
Therefore the modification time of `dags/jobs.py` is updated. Called by the supervisor.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)


class ManifestWatch:
    def __init__(self, jobs: Path, dag_file: Path) -> None:
        self._jobs = jobs
        self._dag_file = dag_file
        self._known: frozenset[tuple[str, int]] | None = None

    def look(self) -> bool:
        """Return whether something has changed since the last look, and Airflow was told."""
        found = frozenset(_files(self._jobs))
        known, self._known = self._known, found
        if known is None or found == known:
            return False
        try:
            os.utime(self._dag_file)
        except OSError as exc:  # a read-only checkout: the next regular parse sees the change
            logger.warning("Airflow could not be told of changed manifests: %s", exc)
            return False
        return True


def _files(jobs: Path) -> list[tuple[str, int]]:
    """Return path and time of change of the manifests and the files beside them, suites included."""
    found = []
    for path in (*jobs.glob("*/*.yaml"), *jobs.glob("*/*.yml"), *jobs.glob("*/*.json")):
        with suppress(OSError):
            found.append((str(path), path.stat().st_mtime_ns))
    return found
