"""The object store's protocol over a folder: quick, and every object can be looked at as a file."""

from __future__ import annotations

import io
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from updraft_learner.storage_errors import too_large
from updraft_learner.store import READ_LIMIT_BYTES, StorageError, StoredObject


class FolderStore:
    """An object store in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put_bytes(self, key: str, data: bytes) -> None:
        self.put_file(key, lambda: io.BytesIO(data))

    def put_file(self, key: str, source: Path | Callable[[], BinaryIO]) -> None:
        target = self.root / key
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".part-{secrets.token_hex(8)}")
        with source.open("rb") if isinstance(source, Path) else source() as file, part.open("wb") as out:
            shutil.copyfileobj(file, out)
        os.replace(part, target)

    def get_bytes(self, key: str, limit_bytes: int = READ_LIMIT_BYTES) -> bytes | None:
        path = self.root / key
        if not path.is_file():
            return None
        if (size := path.stat().st_size) > limit_bytes:
            raise too_large(key, size, limit_bytes)
        return path.read_bytes()

    def open(self, key: str) -> BinaryIO:
        path = self.root / key
        if not path.is_file():
            raise StorageError("missing", f"folder {self.root}: reading {key}: there is no such object")
        return path.open("rb")

    def size(self, key: str) -> int | None:
        path = self.root / key
        return path.stat().st_size if path.is_file() else None

    def list(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        keys = sorted(path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file())
        for key in keys:
            if key.startswith(prefix) and key > after and not Path(key).name.startswith(".part-"):
                yield StoredObject(key, (self.root / key).stat().st_size)

    def delete(self, key: str) -> None:
        (self.root / key).unlink(missing_ok=True)

    def abort_uploads(self, prefix: str, stale: Callable[[str], bool]) -> int:
        return 0  # a file is here as a whole or not at all
