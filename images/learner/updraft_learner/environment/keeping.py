"""Store the environment that the pod's program built as a tree of the content store, after the program has ended.

Called by the sidecar. The program is the job's own image, so nothing of what it reports is believed unseen: the key is
computed here, and the tree is of the files that are there.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from updraft_learner import contract
from updraft_learner.contract import Keys, PodConfig
from updraft_learner.environment import builder
from updraft_learner.environment.documents import (
    DOCUMENT_LIMIT_BYTES,
    LIMIT_FILES,
    LOCK_LIMIT_BYTES,
    EnvironmentRequest,
    answer,
)
from updraft_learner.environment.laying import read_request
from updraft_learner.environment.packs import store_packed
from updraft_learner.pod import PodPaths
from updraft_learner.prepare import blobs
from updraft_learner.prepare.errors import SourceError, tree_errors
from updraft_learner.record.files import open_below
from updraft_learner.store import ObjectStore
from updraft_learner.uploads import read_whole


def keep_environment(config: PodConfig, paths: PodPaths, store: ObjectStore) -> None:
    """Store what was built, and report it to the platform. It may be called twice. Raises StorageError."""
    report = _report(paths)
    error = report.get("error") if isinstance(report.get("error"), dict) else None
    built = None
    try:
        if report.get("done") is True and error is None:
            built = _kept(report, read_request(config, store), paths, store, Keys(config.prefix))
    except SourceError as exc:
        error = exc.to_json()
    store.put_bytes(Keys(config.prefix).environment_built(config.job_id, config.attempt), answer(built, error))


def _kept(
    report: dict[str, Any], request: EnvironmentRequest, paths: PodPaths, store: ObjectStore, keys: Keys
) -> dict[str, Any]:
    lock, python, machine = (report.get(name) for name in ("lock", "python", "machine"))
    if not (isinstance(lock, str) and isinstance(python, str) and isinstance(machine, str)):
        raise SourceError("data", "environment: the build left no lock; submit the job again")
    if len(lock) > LOCK_LIMIT_BYTES:
        raise SourceError("limit", "environment: its lock is too large; ask for fewer packages")
    key = builder.environment_key(request.image, python, machine, lock, request.indexes)
    place = keys.environment(key)
    stored = store.get_bytes(place, contract.SIGNAL_LIMIT_BYTES)
    if stored is not None:
        tree = json.loads(stored)["tree"]
        blobs.read_tree(store, keys, "environment", tree)  # it may have been removed
        return {"tree": tree, "key": key, "lock": lock, "reused": True}
    tree = _stored(request, paths, store, keys)
    store.put_bytes(place, json.dumps({"tree": tree}).encode())
    return {"tree": tree, "key": key, "lock": lock, "reused": False}


def _stored(request: EnvironmentRequest, paths: PodPaths, store: ObjectStore, keys: Keys) -> str:
    build = paths.at(contract.BUILD_DIR)
    folder = build / builder.TREE
    for part in (build, folder):  # a link here would lead the scan to the sidecar's own files
        if not os.path.lexists(part) or not stat.S_ISDIR(os.lstat(part).st_mode):
            raise SourceError("data", "environment: the build left no folder of packages; submit the job again")

    def put(digest: str, content: bytes | Path) -> None:
        if blobs.has_blob(store, keys, digest):
            return
        if isinstance(content, bytes):
            store.put_bytes(keys.blob(digest), content)
        else:
            store.put_file(keys.blob(digest), content)

    with tree_errors("environment"):
        tree = store_packed(folder, put, limit_bytes=request.limit_bytes, limit_files=LIMIT_FILES)
    blobs.put_tree(store, keys, tree)
    return tree.sha256


def _report(paths: PodPaths) -> dict[str, Any]:
    """Return what the program wrote, if that is a mapping of a bounded size."""
    try:
        with open_below(paths.root, f"{paths.below(contract.BUILD_DIR)}/{builder.REPORT}") as file:
            text = read_whole(file, DOCUMENT_LIMIT_BYTES + 1)
        found = json.loads(text) if len(text) <= DOCUMENT_LIMIT_BYTES else None
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
