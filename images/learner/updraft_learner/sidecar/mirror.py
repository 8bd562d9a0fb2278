"""Mirror a folder of the program to the object store: results and log files that have changed and are stable."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

from updraft_learner.record.disk import POD_DISK, PodDisk
from updraft_learner.record.files import HOLLOW_BYTES, NOT_UTF8, FoundFile, Within, find_below, open_below, read_json
from updraft_learner.record.report import Warnings, cut
from updraft_learner.store import ObjectStore

THREADS = 4  # at the end, when the program no longer needs the CPU
SMALL_BYTES = 1 << 20
SAVE_SECONDS = 1.0
SHOWN = 200  # characters of a path, in a warning


class Mirror:
    """The mirror of one folder. Call it from one thread only.

    Args:
        baseline: Files that existed before the program started, and are stored.
        owned: Whether these are this learner's own, from an earlier attempt. Then, a file that the program deletes is
            deleted from the store too.
        hollow_bytes: See `find_below`.
    """

    def __init__(
        self,
        root: Path,
        folder: str,
        store: ObjectStore,
        prefix: str,
        state_file: Path,
        warnings: Warnings,
        baseline: dict[str, list[int]] | None = None,
        *,
        owned: bool = False,
        disk: PodDisk = POD_DISK,
        hollow_bytes: int = HOLLOW_BYTES,
    ) -> None:
        self._root, self._folder, self._store, self._prefix = root, folder, store, prefix
        self._state_file, self._warnings, self._disk, self._hollow_bytes = state_file, warnings, disk, hollow_bytes
        self._baseline, self._owned = baseline or {}, owned
        self._state: dict[str, list[int]] = read_json(state_file, {})  # path -> size and mtime_ns of the stored file
        self._unsaved = False
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
        found, refused = find_below(self._root, self._folder, self._hollow_bytes)
        for path, file in found.items():
            if file.refused == NOT_UTF8:
                found[path] = replace(file, refused="")
                name = f"{self._folder}/{cut(path, SHOWN)}"
                self._warnings.add(f"names {self._folder}", f"{name} {NOT_UTF8}; it is stored by the name shown here")
        if refused:
            self._warnings.add(
                f"links {self._folder}",
                f"{self._folder}/{refused[0]} is a link out of the folder, no file, or not readable; it is not stored",
            )
        for why, path in {file.refused: path for path, file in reversed(found.items()) if file.refused}.items():
            self._warnings.add(f"{why} {self._folder}", f"{self._folder}/{cut(path, SHOWN)} {why}; it is not stored")
        self._waiting = {
            path: file for path, file in found.items() if not file.refused and not self._is_stored(path, file)
        }
        ready = [path for path, file in self._waiting.items() if final or file.same_content(self._before.get(path))]
        try:
            self._store_all(ready, threads=THREADS if final else 1)
        finally:
            self._save()
        if final:
            self._remove_deleted(found)
        self._before = found

    def _store_all(self, paths: list[str], *, threads: int) -> None:
        """Store small files side by side, since each waits for the server most of its time, and large ones one by
        one."""
        small = [path for path in paths if self._waiting[path].size <= SMALL_BYTES]
        saved = time.monotonic()
        pool = ThreadPoolExecutor(threads, thread_name_prefix="mirror")
        try:
            for path, stored in chain(pool.map(self._put, small), map(self._put, sorted({*paths} - {*small}))):
                if not stored:
                    continue
                file = self._waiting.pop(path)
                self._state[path], self._unsaved = [file.size, file.mtime_ns], True
                # Not after each file: with many files, writing this list would take longer than storing them.
                if time.monotonic() - saved >= SAVE_SECONDS:
                    self._save()
                    saved = time.monotonic()
        finally:
            pool.shutdown(cancel_futures=True)

    def _put(self, path: str) -> tuple[str, bool]:
        """Return the path, and whether it is stored now. Raises StorageError."""
        file = self._waiting[path]

        def opened() -> BinaryIO:
            return cast(BinaryIO, Within(open_below(self._root, f"{self._folder}/{file.source}"), file.size))

        try:
            self._store.put_file(f"{self._prefix}/{path}", opened)
        except FileNotFoundError:
            return path, False
        except PermissionError:
            self._warnings.add(
                f"unreadable {self._folder}/{path}",
                f"{self._folder}/{path} cannot be read by the sidecar; make it readable for its owner",
            )
            return path, False
        return path, True

    def _save(self) -> None:
        if self._unsaved:
            self._unsaved = not self._disk.save_json(self._state_file, self._state)

    def _is_stored(self, path: str, file: FoundFile) -> bool:
        facts = [file.size, file.mtime_ns]
        return self._state.get(path) == facts or self._baseline.get(path) == facts

    def _remove_deleted(self, found: dict[str, FoundFile]) -> None:
        """Delete files that the program deleted after they were stored: they are no results."""
        gone = {path for path in self._state if path not in found}
        before = {path for path in self._baseline if path not in found} if self._owned else set()
        for path in sorted(gone | before):
            self._store.delete(f"{self._prefix}/{path}")
            if self._state.pop(path, None) is not None:
                self._unsaved = True
        self._save()
