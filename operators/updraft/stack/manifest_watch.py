"""Make Airflow see a changed manifest in `jobs/` within seconds, although it parses unchanged DAG files only every five
minutes.

Airflow parses a file that is newer than its last parse, but does not know the manifests that `dags/jobs.py` reads.
Therefore the modification time of `dags/jobs.py` is updated. Called by the supervisor.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)


AGAIN_SECONDS = 10.0  # Airflow has parsed the file by then


class ManifestWatch:
    """Watches the manifests. Airflow is told of a change twice: at the parse at which the arguments of an asset's
    watcher change, Airflow 3.3 drops the watcher, and takes up the new one only at the next parse
    (`AssetModelOperation.add_asset_trigger_references`). Until then, nothing looks whether the series fires."""

    def __init__(self, jobs: Path, dag_file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._jobs = jobs
        self._dag_file = dag_file
        self._clock = clock
        self._known: frozenset[tuple[str, int]] | None = None
        self._again_at: float | None = None

    def look(self) -> bool:
        """Return whether Airflow was told to parse: something has changed since the last look, or some seconds ago."""
        found = frozenset(_files(self._jobs))
        known, self._known = self._known, found
        if known is not None and found != known:
            self._again_at = self._clock() + AGAIN_SECONDS
            return self._tell()
        if self._again_at is not None and self._clock() >= self._again_at:
            self._again_at = None
            return self._tell()
        return False

    def _tell(self) -> bool:
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
