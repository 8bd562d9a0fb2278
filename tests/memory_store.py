"""The object store's protocol in memory: quick, and copied at once. For tests that look at no files."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from updraft_learner.storage_errors import too_large
from updraft_learner.store import READ_LIMIT_BYTES, StorageError, StoredObject


class MemoryStore:
    """An object store without a place. `changes` counts what was written and deleted."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.changes = 0

    def put_bytes(self, key: str, data: bytes) -> None:
        self.objects[key] = bytes(data)
        self.changes += 1

    def put_file(self, key: str, source: Path | Callable[[], BinaryIO]) -> None:
        with source.open("rb") if isinstance(source, Path) else source() as file:
            self.put_bytes(key, file.read())

    def get_bytes(self, key: str, limit_bytes: int = READ_LIMIT_BYTES) -> bytes | None:
        data = self.objects.get(key)
        if data is not None and len(data) > limit_bytes:
            raise too_large(key, len(data), limit_bytes)
        return data

    def open(self, key: str) -> BinaryIO:
        if key not in self.objects:
            raise StorageError("missing", f"reading {key}: there is no such object")
        return io.BytesIO(self.objects[key])

    def size(self, key: str) -> int | None:
        return len(self.objects[key]) if key in self.objects else None

    def list(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        for key in sorted(self.objects):
            if key.startswith(prefix) and key > after:
                yield StoredObject(key, len(self.objects[key]))

    def delete(self, key: str) -> None:
        self.changes += self.objects.pop(key, None) is not None

    def abort_uploads(self, prefix: str, stale: Callable[[str], bool]) -> int:
        return 0  # an object is here as a whole or not at all
