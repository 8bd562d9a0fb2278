"""Keeps a folder of the program in the object store: results and log files, when they have changed and are stable."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from updraft_learner.sidecar.files import FoundFile, find_below, open_below, read_json, write_json
from updraft_learner.sidecar.report import Warnings
from updraft_learner.store import ObjectStore


class Mirror:
    """Called by one thread. `baseline` are files that were there before the program started and are not its results."""

    def __init__(
        self,
        root: Path,
        folder: str,
        store: ObjectStore,
        prefix: str,
        state_file: Path,
        warnings: Warnings,
        baseline: dict[str, list[int]] | None = None,
    ) -> None:
        self._root, self._folder, self._store, self._prefix = root, folder, store, prefix
        self._state_file, self._warnings = state_file, warnings
        self._baseline = baseline or {}
        self._state: dict[str, list[int]] = read_json(state_file, {})  # path -> size, mtime_ns as stored
        self._before: dict[str, FoundFile] = {}
        self._waiting: dict[str, FoundFile] = {}

    @property
    def files(self) -> int:
        return len(self._state)

    @property
    def size_bytes(self) -> int:
        return sum(size for size, _ in list(self._state.values()))

    @property
    def pending_bytes(self) -> int:
        return sum(file.size for file in list(self._waiting.values()))

    def poll(self, *, final: bool = False) -> None:
        """Upload what has not changed since the call before; with `final` everything. Raises StorageError."""
        found, refused = find_below(self._root, self._folder)
        if refused:
            self._warnings.add(
                f"links {self._folder}",
                f"{self._folder}/{refused[0]} is a link out of the folder, no file, or not readable; it is not stored",
            )
        self._waiting = {path: file for path, file in found.items() if not self._is_stored(path, file)}
        for path, file in list(self._waiting.items()):
            if not final and not file.same_content(self._before.get(path)):
                continue
            try:
                opener = partial(open_below, self._root, f"{self._folder}/{file.source}")
                self._store.put_file(f"{self._prefix}/{path}", opener)
            except FileNotFoundError:
                continue
            except PermissionError:
                self._warnings.add(
                    f"unreadable {self._folder}/{path}",
                    f"{self._folder}/{path} cannot be read by the sidecar; make it readable for the group",
                )
                continue
            self._state[path] = [file.size, file.mtime_ns]
            write_json(self._state_file, self._state)
            self._waiting.pop(path, None)
        if final:
            self._remove_deleted(found)
        self._before = found

    def _is_stored(self, path: str, file: FoundFile) -> bool:
        facts = [file.size, file.mtime_ns]
        return self._state.get(path) == facts or self._baseline.get(path) == facts

    def _remove_deleted(self, found: dict[str, FoundFile]) -> None:
        """A file that the program deleted after it was stored is no result."""
        for path in [path for path in self._state if path not in found]:
            self._store.delete(f"{self._prefix}/{path}")
            del self._state[path]
            write_json(self._state_file, self._state)
