"""Blobs and trees, both named by their SHA-256, so that storing twice is harmless and nothing is stored twice.

Everything that comes in is hashed before it counts. Which content a tenant may see is decided by the prefix of `Keys`.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, BinaryIO

from updraft.exceptions import DataError, LimitError, NotFoundError
from updraft.storage.errors import platform_errors
from updraft_learner.contract import TREE_LIMIT_BYTES, Keys
from updraft_learner.store import ObjectStore, StorageError
from updraft_learner.trees import DigestMismatch, Tree, TreeError, TreeFile, hash_file, materialise, megabytes

THREADS = 8
CHUNK_BYTES = 1 << 20
LIST_ALL_FROM = 500  # from so many blobs on, one listing of all is cheaper than a question each

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


class ContentStore:
    """The content of one tenant."""

    def __init__(self, store: ObjectStore, keys: Keys) -> None:
        self.store = store
        self.keys = keys

    def has_blob(self, sha256: str) -> bool:
        key = self.keys.blob(_digest(sha256))
        with platform_errors():
            return any(item.key == key for item in self.store.list(key))

    def missing(self, tree: Tree) -> set[str]:
        """Digests of the tree's blobs that are not stored yet."""
        return self.missing_of({file.sha256 for file in tree.files})

    def missing_of(self, digests: Collection[str]) -> set[str]:
        wanted = set(digests)
        if len(wanted) >= LIST_ALL_FROM:
            prefix = self.keys.blob("")
            with platform_errors():
                return wanted - {item.key[len(prefix) :] for item in self.store.list(prefix)}
        ordered = sorted(wanted)
        with ThreadPoolExecutor(THREADS, thread_name_prefix="blobs") as pool:
            there = pool.map(self.has_blob, ordered)
            return {digest for digest, known in zip(ordered, there, strict=True) if not known}

    def put_blob(self, content: Path | BinaryIO, sha256: str, *, limit_bytes: int | None = None) -> None:
        """Stores content under its digest. Raises DataError when it has another one, LimitError when too large."""
        _digest(sha256)
        if isinstance(content, Path):
            found, size_bytes = hash_file(content)
            _check_digest(sha256, found)
            _check_limit(size_bytes, limit_bytes)
            self._put(sha256, content)
            return
        with tempfile.NamedTemporaryFile(prefix="updraft-blob-") as file:
            found, _ = _copy(content, file, limit_bytes)
            _check_digest(sha256, found)
            self._put(sha256, Path(file.name))

    def add_stream(self, content: BinaryIO, *, limit_bytes: int | None = None) -> tuple[str, int]:
        """Stores content whose digest is not known beforehand; returns digest and size."""
        with tempfile.NamedTemporaryFile(prefix="updraft-blob-") as file:
            found, size_bytes = _copy(content, file, limit_bytes)
            self._put(found, Path(file.name))
            return found, size_bytes

    def put_blobs(self, blobs: Mapping[str, Path], progress: Callable[[int], None] | None = None) -> int:
        """Stores those files that are not stored yet and returns how many these were. `progress` gets sizes."""
        absent = sorted(self.missing_of(blobs.keys()))

        def put(digest: str) -> None:
            self.put_blob(blobs[digest], digest)
            if progress is not None:
                progress(blobs[digest].stat().st_size)

        with ThreadPoolExecutor(THREADS, thread_name_prefix="blobs") as pool:
            for _ in pool.map(put, absent):
                pass
        return len(absent)

    def open_blob(self, sha256: str) -> BinaryIO:
        """Raises NotFoundError."""
        with platform_errors():
            return self.store.open(self.keys.blob(_digest(sha256)))

    def put_tree(self, tree: Tree) -> str:
        """Stores the document and returns its digest. Raises DataError when blobs of it are not stored."""
        absent = self.missing(tree)
        if absent:
            names = [file.path for file in tree.files if file.sha256 in absent]
            raise DataError(
                f"tree: {len(absent)} of its contents are not stored, such as that of {names[0]!r}; upload them first"
            )
        with platform_errors():
            self.store.put_bytes(self.keys.tree(tree.sha256), tree.to_json())
        return tree.sha256

    def get_tree(self, sha256: str) -> Tree:
        """Raises NotFoundError when it is not stored, DataError when the document was changed."""
        with platform_errors():
            text = self.store.get_bytes(self.keys.tree(_digest(sha256)), TREE_LIMIT_BYTES)
        if text is None:
            raise NotFoundError(f"tree: {sha256[:12]} is not in the content store; submit again to upload it")
        try:
            tree = Tree.from_json(text)
        except TreeError as exc:
            raise DataError(f"tree: {sha256[:12]} cannot be read ({exc}); submit again") from exc
        if tree.sha256 != sha256:
            raise DataError(f"tree: the document of {sha256[:12]} does not match its digest; submit again")
        return tree

    def fetch(self, tree: Tree, folder: Path, paths: Iterable[str] | None = None) -> None:
        """Lays the tree (or only these paths of it) out below `folder`; what is there already is kept."""
        wanted = tree if paths is None else _part(tree, set(paths))

        def content(file: TreeFile) -> BinaryIO:
            return self.store.open(self.keys.blob(file.sha256))

        with platform_errors():
            try:
                materialise(wanted, folder, content, threads=THREADS)
            except StorageError as exc:
                if exc.kind != "missing":
                    raise
                raise NotFoundError(
                    f"tree: a content of {tree.sha256[:12]} is gone from the store; stage again"
                ) from exc
            except DigestMismatch as exc:
                raise DataError(f"The content store is damaged: {exc}; stage again") from exc
            except TreeError as exc:
                raise DataError(f"tree: {tree.sha256[:12]} cannot be laid out: {exc}") from exc

    def _put(self, sha256: str, content: Path) -> None:
        if not self.has_blob(sha256):
            with platform_errors():
                self.store.put_file(self.keys.blob(sha256), content)


def _digest(sha256: str) -> str:
    if not _SHA256.fullmatch(sha256):
        raise DataError(f"sha256: {sha256[:80]!r} must be 64 hexadecimal digits in lower case")
    return sha256


def _check_digest(expected: str, found: str) -> None:
    if expected != found:
        raise DataError(f"content: its SHA-256 is {found[:12]}…, not {expected[:12]}… as announced; upload it again")


def _check_limit(size_bytes: int, limit_bytes: int | None) -> None:
    if limit_bytes is not None and size_bytes > limit_bytes:
        raise LimitError(f"content: larger than the limit of {megabytes(limit_bytes)}; make it smaller")


def _copy(source: BinaryIO, target: IO[bytes], limit_bytes: int | None) -> tuple[str, int]:
    digest, size_bytes = hashlib.sha256(), 0
    while chunk := source.read(CHUNK_BYTES):
        digest.update(chunk)
        size_bytes += len(chunk)
        _check_limit(size_bytes, limit_bytes)
        target.write(chunk)
    target.flush()
    return digest.hexdigest(), size_bytes


def _part(tree: Tree, paths: set[str]) -> Tree:
    unknown = sorted(paths - {file.path for file in tree.files})
    if unknown:
        raise NotFoundError(f"tree: {tree.sha256[:12]} has no file {unknown[0]!r}")
    return Tree(tuple(file for file in tree.files if file.path in paths))
