"""Find out what `updraft clean` may remove from a home: folders that are not in use, and their sizes.

It looks only at the embedded stack's home, and never at the ledger, the store, MLflow or secrets.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from updraft.stack.layout import Home

DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class Removable:
    path: Path
    what: str
    size_bytes: int


def find(home: Home, *, older_than_days: float, now: float | None = None) -> list[Removable]:
    """Return the pods' folders and task logs that have not changed for `older_than_days`, and the environments of
    images that no longer exist."""
    before = (time.time() if now is None else now) - older_than_days * DAY_SECONDS
    found = []
    for path in _folders(home.node / "pods"):
        if _changed(path) < before and not _in_use(path):
            found.append(Removable(path, "folder of an old pod", _size(path)))
    for dag in _folders(home.airflow / "logs"):
        for path in _folders(dag):
            if dag.name.startswith("dag_id=") and path.name.startswith("run_id=") and _changed(path) < before:
                found.append(Removable(path, "task logs of an old run", _size(path)))
    known = _known_environments(home)
    for path in _folders(home.images):
        if path.name not in known:
            found.append(Removable(path, "environment of an image that the catalogue no longer names", _size(path)))
    return found


def remove(found: list[Removable]) -> None:
    """Remove the folders. A folder that has disappeared meanwhile is no error."""
    for item in found:
        shutil.rmtree(item.path, ignore_errors=True)


def _folders(folder: Path) -> list[Path]:
    """Return the folders below `folder`. Links are not followed: their targets are not the platform's."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


def _known_environments(home: Home) -> set[str]:
    from updraft.stack import environments
    from updraft.stack.footprint import slug

    return {slug(name) for name in environments.image_names(home)}


def _in_use(pod: Path) -> bool:
    """Return whether a process that the local node recorded for the pod still lives."""
    import psutil

    for record in pod.glob("c/*/*/process"):
        try:
            recorded = json.loads(record.read_text())
        except (OSError, ValueError):
            return True  # it is just being written, so it is in use
        for pid, created in recorded.values():
            try:
                if abs(psutil.Process(int(pid)).create_time() - float(created)) < 1.0:
                    return True
            except psutil.Error:
                continue
    return False


def _changed(folder: Path) -> float:
    """Return the newest change below the folder."""
    return max(facts.st_mtime for facts in _facts(folder))


def _size(folder: Path) -> int:
    return sum(facts.st_size for facts in _facts(folder))


def _facts(folder: Path) -> Iterator[os.stat_result]:
    yield folder.lstat()
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            try:
                yield os.lstat(os.path.join(root, name))
            except FileNotFoundError:
                continue
