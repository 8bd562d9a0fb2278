"""Store blobs and trees, both named by their SHA-256: nothing is stored twice, and storing twice is harmless.

All incoming content is hashed before it is accepted. A tenant sees only the content below its own prefix (`Keys`).
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, BinaryIO

from updraft.exceptions import DataError, LimitError, NotFoundError
from updraft.storage.errors import platform_errors
from updraft_learner.contract import TREE_LIMIT_BYTES, Keys
from updraft_learner.prepare import blobs
from updraft_learner.store import ObjectStore
from updraft_learner.streams.listing import ListingError, ObjectListing, digest_of
from updraft_learner.trees import Tree, TreeError, hash_file, megabytes

CHUNK_BYTES = 1 << 20

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


class ContentStore:
    """The content of one tenant."""

    def __init__(self, store: ObjectStore, keys: Keys) -> None:
        self.store = store
        self.keys = keys

    def has_blob(self, sha256: str) -> bool:
        _digest(sha256)
        with platform_errors():
            return blobs.has_blob(self.store, self.keys, sha256)

    def missing(self, tree: Tree) -> set[str]:
        """Return the digests of the tree's blobs that are not stored yet."""
        return self.missing_of({file.sha256 for file in tree.files})

    def missing_of(self, digests: Collection[str]) -> set[str]:
        for digest in digests:
            _digest(digest)
        with platform_errors():
            return blobs.missing(self.store, self.keys, digests)

    def put_blob(self, content: Path | BinaryIO, sha256: str, *, limit_bytes: int | None = None) -> None:
        """Store content under its digest. Raises DataError when it has another one, LimitError when too large."""
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

    def put_blobs(self, files: Mapping[str, Path]) -> int:
        """Store those files, by digest, that are not stored yet and returns how many these were."""
        with platform_errors():
            return blobs.put_blobs(self.store, self.keys, files)

    def open_blob(self, sha256: str) -> BinaryIO:
        """Open a blob for reading. Raises NotFoundError."""
        with platform_errors():
            return self.store.open(self.keys.blob(_digest(sha256)))

    def put_tree(self, tree: Tree) -> str:
        """Store the document and returns its digest. Raises DataError when blobs of it are not stored."""
        absent = self.missing(tree)
        if absent:
            names = [file.path for file in tree.files if file.sha256 in absent]
            raise DataError(
                f"tree: {len(absent)} of its contents are not stored, such as that of {names[0]!r}; upload them first"
            )
        document = tree.to_json()
        sha256 = hashlib.sha256(document).hexdigest()
        with platform_errors():
            self.store.put_bytes(self.keys.tree(sha256), document)
        return sha256

    def get_tree(self, sha256: str) -> Tree:
        """Return the tree. Raises NotFoundError when it is not stored, DataError when the document was changed."""
        tree = self.find_tree(sha256)
        if tree is None:
            raise NotFoundError(f"tree: {sha256[:12]} is not in the content store; submit again to upload it")
        return tree

    def find_tree(self, sha256: str) -> Tree | None:
        """Return the tree, or None when it is not stored. Raises DataError when the document was changed."""
        with platform_errors():
            text = self.store.get_bytes(self.keys.tree(_digest(sha256)), TREE_LIMIT_BYTES)
        if text is None:
            return None
        try:
            tree = Tree.from_json(text)
        except TreeError as exc:
            raise DataError(f"tree: {sha256[:12]} cannot be read ({exc}); submit again") from exc
        if tree.sha256 != sha256:
            raise DataError(f"tree: the document of {sha256[:12]} does not match its digest; submit again")
        return tree

    def put_listing(self, listing: ObjectListing) -> str:
        """Store the list of a streamed data set's objects and return its digest."""
        document = listing.to_json()
        sha256 = digest_of(document)
        with platform_errors():
            self.store.put_bytes(self.keys.listing(sha256), document)
        return sha256

    def get_listing(self, sha256: str) -> ObjectListing:
        """Return a list of objects. Raises NotFoundError when it is not stored, DataError when it was changed."""
        with platform_errors():
            text = self.store.get_bytes(self.keys.listing(_digest(sha256)), TREE_LIMIT_BYTES)
        if text is None:
            raise NotFoundError(f"listing: {sha256[:12]} is not in the content store; submit again")
        try:
            return ObjectListing.from_json(text, sha256)
        except ListingError as exc:
            raise DataError(f"listing: {sha256[:12]} {exc}; submit again") from exc

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
