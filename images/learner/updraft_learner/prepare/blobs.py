"""Use the content store over an object store: find missing blobs, and put blobs and trees."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from updraft_learner.contract import TREE_LIMIT_BYTES, Keys
from updraft_learner.prepare.errors import SourceError
from updraft_learner.store import ObjectStore
from updraft_learner.trees import CHUNK_BYTES, Tree, TreeError, megabytes


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


THREADS = 8
LIST_ALL_FROM = 500  # from this many blobs on, one listing of all is cheaper than one request each


def has_blob(store: ObjectStore, keys: Keys, sha256: str) -> bool:
    key = keys.blob(sha256)
    return any(item.key == key for item in store.list(key))


def missing(store: ObjectStore, keys: Keys, digests: Collection[str]) -> set[str]:
    """Return those of the digests whose content is not stored."""
    wanted = set(digests)
    if len(wanted) >= LIST_ALL_FROM:
        prefix = keys.blob("")
        return wanted - {item.key[len(prefix) :] for item in store.list(prefix)}
    ordered = sorted(wanted)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="blobs") as pool:
        there = pool.map(lambda digest: has_blob(store, keys, digest), ordered)
        return {digest for digest, known in zip(ordered, there, strict=True) if not known}


def add_stream(store: ObjectStore, keys: Keys, content: Readable, limit_bytes: int) -> tuple[str, int]:
    """Store content whose digest is not known beforehand; returns digest and size. Raises SourceError above the
    limit."""
    digest, size_bytes = hashlib.sha256(), 0
    with tempfile.NamedTemporaryFile(prefix="updraft-blob-") as file:
        while chunk := content.read(CHUNK_BYTES):
            digest.update(chunk)
            size_bytes += len(chunk)
            if size_bytes > limit_bytes:
                raise SourceError(
                    "limit", f"content: larger than the limit of {megabytes(limit_bytes)}; make it smaller"
                )
            file.write(chunk)
        file.flush()
        found = digest.hexdigest()
        if not has_blob(store, keys, found):
            store.put_file(keys.blob(found), Path(file.name))
        return found, size_bytes


def put_blobs(store: ObjectStore, keys: Keys, blobs: Mapping[str, Path]) -> int:
    """Store those files, by digest, that are not stored yet; returns how many these were."""
    absent = sorted(missing(store, keys, blobs.keys()))
    with ThreadPoolExecutor(THREADS, thread_name_prefix="blobs") as pool:
        for _ in pool.map(lambda digest: store.put_file(keys.blob(digest), blobs[digest]), absent):
            pass
    return len(absent)


def put_tree(store: ObjectStore, keys: Keys, tree: Tree) -> None:
    """Store a tree's document. Its blobs must be stored before."""
    store.put_bytes(keys.tree(tree.sha256), tree.to_json())


def read_tree(store: ObjectStore, keys: Keys, source: str, sha256: str) -> Tree:
    """Return the tree. Raises SourceError when it is not there, or was changed."""
    text = store.get_bytes(keys.tree(sha256), TREE_LIMIT_BYTES)
    if text is None:
        raise SourceError("data", f"{source}: tree {sha256[:12]} is not in the content store; submit again")
    try:
        tree = Tree.from_json(text)
    except TreeError as exc:
        raise SourceError("data", f"{source}: tree {sha256[:12]} cannot be read ({exc}); submit again") from exc
    if tree.sha256 != sha256:
        raise SourceError("data", f"{source}: the document of tree {sha256[:12]} does not match its digest")
    return tree
