"""Remember in the store what sources contained, so that unchanged content is neither fetched nor unpacked again.

This is only a cache: an unreadable entry counts as missing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from updraft_learner.contract import TREE_LIMIT_BYTES, Keys
from updraft_learner.prepare import blobs
from updraft_learner.prepare.buckets import Listed
from updraft_learner.store import ObjectStore, StorageError

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


class Listing:
    """The last listing of a bucket's source, with the digests of its objects."""

    def __init__(self, store: ObjectStore, keys: Keys, source: str, endpoint: str) -> None:
        self._store, self._keys = store, keys
        self._key = _key(keys, [endpoint, source])

    def unchanged(self, objects: Mapping[str, Listed]) -> dict[str, tuple[str, int]]:
        """Return the digest and size of the objects that did not change and are still in the content store. Raises
        StorageError."""
        last = _read(self._store, self._key).get("objects")
        try:
            same = {
                path: (str(entry["sha256"]), int(entry["size"]))
                for path, item in objects.items()
                if (entry := (last or {}).get(path)) is not None
                and (entry["version"], entry["size"]) == (item.version, item.size)
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}
        absent = blobs.missing(self._store, self._keys, {digest for digest, _ in same.values()})
        return {path: entry for path, entry in same.items() if entry[0] not in absent}

    def keep(self, objects: Mapping[str, Listed], digests: Mapping[str, tuple[str, int]]) -> None:
        """Store the listing. Objects without a digest are left out, and so are those that changed between listing and
        reading: both are read the next time."""
        entries = {
            path: {"version": item.version, "size": item.size, "sha256": digests[path][0]}
            for path, item in objects.items()
            if path in digests and digests[path][1] == item.size
        }
        self._store.put_bytes(self._key, json.dumps({"objects": entries}, sort_keys=True).encode())


def archive(sha256: str) -> list[str]:
    """Return the words that name what an archive unpacks to."""
    return ["archive", sha256]


def commit(url: str, sha: str, subfolder: str) -> list[str]:
    """Return the words that name the files of a commit, or of a folder of it."""
    return ["git", url, sha, subfolder]


def remember(store: ObjectStore, keys: Keys, what: list[str], tree: str) -> None:
    """Keep which tree was made of `what`."""
    store.put_bytes(_key(keys, what), json.dumps({"tree": tree}).encode())


def remembered(store: ObjectStore, keys: Keys, what: list[str]) -> str | None:
    """Return the digest of the tree that was made of `what`; None when that is not known. Raises StorageError."""
    tree = _read(store, _key(keys, what)).get("tree")
    return tree if isinstance(tree, str) and _SHA256.fullmatch(tree) else None


def _key(keys: Keys, what: list[str]) -> str:
    return keys.source(hashlib.sha256(json.dumps(what).encode()).hexdigest())


def _read(store: ObjectStore, key: str) -> dict[str, Any]:
    try:
        found = json.loads(store.get_bytes(key, TREE_LIMIT_BYTES) or b"{}")
    except StorageError as exc:
        if exc.kind != "too large":
            raise
        return {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
