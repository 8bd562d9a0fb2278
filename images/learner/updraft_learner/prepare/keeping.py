"""Store the folders that the pod's program made as trees of the content store, after the program has ended.

Called by the sidecar, which alone has the credentials. The files are hashed and copied, within the source's limits, and
never interpreted.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

from updraft_learner import contract
from updraft_learner.contract import Keys, PodConfig
from updraft_learner.pod import PodPaths
from updraft_learner.prepare import blobs, memory
from updraft_learner.prepare.documents import REPORT_LIMIT_BYTES, Copied, PrepareWork, SourceRequest, outcome
from updraft_learner.prepare.errors import SourceError, tree_errors
from updraft_learner.record.files import open_below
from updraft_learner.store import ObjectStore
from updraft_learner.trees import Tree, scan
from updraft_learner.uploads import read_whole

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.ASCII)


def keep_trees(config: PodConfig, paths: PodPaths, store: ObjectStore) -> None:
    """Store what was made, and report to the platform which trees the sources are. It may be called twice.

    Nothing is stored of a program that failed, which has left its reason in its report, or of a program that was
    interrupted, which has left none. Raises StorageError.
    """
    keys = Keys(config.prefix)
    work = PrepareWork.from_json(paths.kept_work_file.read_bytes())
    report = _report(paths)
    sources: dict[str, dict[str, Any]] = {}
    error = report.get("error") if isinstance(report.get("error"), dict) else None
    whole = report.get("done") is True and error is None
    try:
        for source in work.request.sources if whole else ():
            copied = work.copied[source.name]
            sources[source.name] = _kept(source, copied, work, paths, store, keys, report)
    except SourceError as exc:
        error = exc.to_json()
    store.put_bytes(keys.prepared(config.job_id, config.attempt), outcome(sources, report, error))


def _kept(
    source: SourceRequest,
    copied: Copied,
    work: PrepareWork,
    paths: PodPaths,
    store: ObjectStore,
    keys: Keys,
    report: dict[str, Any],
) -> dict[str, Any]:
    provenance = dict(copied.provenance)
    if copied.tree is not None and copied.archive is None:
        return {"tree": copied.tree, "provenance": provenance}
    folder = paths.trees / source.name
    for part in (paths.trees, folder):  # a link here would lead the scan to the sidecar's own files
        if not part.exists() or not stat.S_ISDIR(os.lstat(part).st_mode):
            raise SourceError("data", f"{source.source}: the pod's program left no folder of its files")
    tree = _stored(source, folder, work.request.limit_files, store, keys)
    if source.kind == "git":
        commit = (report.get("commits") or {}).get(source.name)
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise SourceError("data", f"{source.source}: the pod's program names no commit")
        provenance |= {"repository": source.url, "commit": commit}
        memory.remember(store, keys, memory.commit(source.url, commit, source.subfolder), tree.sha256)
    else:
        memory.remember(store, keys, memory.archive(str(provenance["archive_sha256"])), tree.sha256)
    return {"tree": tree.sha256, "provenance": provenance}


def _stored(source: SourceRequest, folder: Path, limit_files: int, store: ObjectStore, keys: Keys) -> Tree:
    with tree_errors(source.source):
        tree, found = scan(folder, limit_bytes=source.limit_bytes, limit_files=limit_files, ignores=False)
    if not tree.files:
        raise SourceError("data", f"{source.source}: holds no files; correct the path or add files")
    blobs.put_blobs(store, keys, found)
    blobs.put_tree(store, keys, tree)
    return tree


def _report(paths: PodPaths) -> dict[str, Any]:
    """Return what the program wrote, if that is a mapping of a bounded size."""
    relative = str(Path(contract.PREPARE_REPORT_FILE).relative_to(contract.ROOT_DIR))
    try:
        with open_below(paths.root, relative) as file:
            text = read_whole(file, REPORT_LIMIT_BYTES + 1)
        found = json.loads(text) if len(text) <= REPORT_LIMIT_BYTES else None
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
