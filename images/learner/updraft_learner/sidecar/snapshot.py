"""Hold a folder's files open during their upload, so that complete files stay readable if the program removes them."""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, cast

from updraft_learner.record.files import HOLLOW_BYTES, FoundFile, Within, find_below, open_below

HOLD_AT_MOST = 256  # files; further ones are opened when they are read


class FolderSnapshot:
    """The files of a folder. `found` is what existed when it was opened; `refused` are names of links and special
    files."""

    def __init__(self, root: Path, folder: str, hollow_bytes: int = HOLLOW_BYTES) -> None:
        self._root, self._folder, self._hollow_bytes = root, folder, hollow_bytes
        self.found, self.refused = find_below(root, folder, hollow_bytes)
        self._open: dict[str, BinaryIO] = {}
        with ExitStack() as stack:
            for path, file in list(self.found.items())[:HOLD_AT_MOST]:
                self._open[path] = stack.enter_context(open_below(root, f"{folder}/{file.source}"))
            self._stack = stack.pop_all()

    def __enter__(self) -> FolderSnapshot:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def open(self, path: str) -> BinaryIO:
        """Open a file from its beginning, as long as it was found; the caller closes it.

        Raises FileNotFoundError for a file that is not held.
        """
        return cast(BinaryIO, Within(self._whole(path), self.found[path].size))

    def _whole(self, path: str) -> BinaryIO:
        held = self._open.get(path)
        if held is None:
            return open_below(self._root, f"{self._folder}/{self.found[path].source}")
        os.lseek(held.fileno(), 0, os.SEEK_SET)
        return os.fdopen(os.dup(held.fileno()), "rb", buffering=0)

    def written_to(self) -> bool:
        """Return whether a file that is held was written to since."""
        return any(not self.found[path].same_content(_facts(file)) for path, file in self._open.items())

    def still_there(self) -> bool:
        """Return whether the folder holds what it held, no more and no less."""
        return find_below(self._root, self._folder, self._hollow_bytes) == (self.found, self.refused)


class Hashing:
    """A file for reading that computes the digest of everything read from it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash, self.size = file, hashlib.sha256(), 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        self.size += len(data)
        return data

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def __enter__(self) -> BinaryIO:
        return cast(BinaryIO, self)

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()


def _facts(file: BinaryIO) -> FoundFile:
    now = os.fstat(file.fileno())
    return FoundFile("", now.st_size, now.st_mtime_ns)
