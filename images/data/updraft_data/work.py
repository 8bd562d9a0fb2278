"""Do the work of the pod, source by source: write archives and repositories to TREES_DIR, and judge data."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from updraft_data import git
from updraft_data.limited import validate_limited
from updraft_learner.pod import PodPaths
from updraft_learner.prepare.documents import (
    CREDENTIALS,
    REPORT_LIMIT_BYTES,
    Copied,
    PrepareRequest,
    PrepareWork,
    SourceRequest,
)
from updraft_learner.prepare.errors import SourceError, tree_errors
from updraft_learner.trees import Tree, from_zip, megabytes, remove_ignored, scan

Say = Callable[[str], None]
PROFILES_BYTES = REPORT_LIMIT_BYTES // 2  # of a report, for the descriptions of columns


def do(work: PrepareWork, paths: PodPaths, environment: Mapping[str, str], say: Say) -> dict[str, Any]:
    """Return the report: the commit of each repository, and the result of each suite.

    Raises SourceError if a source cannot be fetched. If data cannot be judged, that is its result.
    """
    commits: dict[str, str] = {}
    judged: dict[str, dict[str, Any]] = {}
    for source in work.request.sources:
        copied = work.copied[source.name]
        if source.kind == "git":
            commits[source.name] = _fetch(source, work.request, paths, environment, say)
        elif copied.archive is not None:
            _unpack(source, copied.archive, work.request, paths, say)
        if source.suite is not None:
            found = _judge(source, copied, work.request, paths, say)
            if found is not None:
                judged[source.name] = found
    _leave_out_profiles(judged)
    return {"commits": commits, "judged": judged}


def _leave_out_profiles(judged: dict[str, dict[str, Any]]) -> None:
    """Remove the descriptions of columns that would make the report too large; results are more important."""
    left_bytes = PROFILES_BYTES
    for found in judged.values():
        result = found.get("result") or {}
        left_bytes -= len(json.dumps(result.get("profile")))
        if left_bytes < 0:
            result["profile"] = None


def _fetch(
    source: SourceRequest, request: PrepareRequest, paths: PodPaths, environment: Mapping[str, str], say: Say
) -> str:
    """Lay the repository's files out; returns the commit."""
    credentials = {key: environment[name] for key, name in CREDENTIALS.items() if name in environment}
    work = paths.root / "work" / source.name
    work.mkdir(parents=True, exist_ok=True)
    found = git.checkout(
        source.url,
        source.ref,
        source.subfolder,
        work,
        limit_bytes=source.limit_bytes,
        limit_files=request.limit_files,
        credentials=credentials if source.secret is not None else None,
        secret_name=source.secret,
        protocols=request.protocols,
        say=say,
    )
    os.replace(found.folder, _target(paths, source))
    with tree_errors(source.source):
        remove_ignored(_target(paths, source))
    say(f"{source.source}: commit {found.commit}")
    return found.commit


def _unpack(source: SourceRequest, archive: str, request: PrepareRequest, paths: PodPaths, say: Say) -> None:
    packed = paths.data / f"{source.name}.archive" / archive
    say(f"{source.source}: unpacking {megabytes(packed.stat().st_size)}")
    with tree_errors(source.source):
        from_zip(packed, _target(paths, source), limit_bytes=source.limit_bytes, limit_files=request.limit_files)
        remove_ignored(_target(paths, source))


def _target(paths: PodPaths, source: SourceRequest) -> Path:
    return paths.trees / source.name


def _judge(
    source: SourceRequest, copied: Copied, request: PrepareRequest, paths: PodPaths, say: Say
) -> dict[str, Any] | None:
    """Return the suite's result, or why there is none; None where the verdict on this data is known.

    Raises SourceError of kind `unavailable` where another attempt may judge it.
    """
    assert source.suite is not None
    folder = paths.data / source.name
    if copied.archive is not None:
        folder = _target(paths, source)
        with tree_errors(source.source):
            tree, _ = scan(folder, limit_bytes=source.limit_bytes, limit_files=request.limit_files, ignores=False)
    elif copied.tree in source.judged:
        return None
    else:
        tree = Tree.from_json((paths.data / f"{source.name}.json").read_bytes())
    if tree.sha256 in source.judged:
        return None
    say(f"Validating {source.source}")
    try:
        result = validate_limited(
            folder,
            tree,
            source.suite,
            format=source.format,
            memory_bytes=request.memory_bytes,
            seconds=request.seconds,
        )
    except SourceError as exc:
        say(f"{source.source}: {exc}")
        if exc.kind == "unavailable":
            raise
        return {"tree": tree.sha256, "error": exc.to_json()}
    say(f"{source.source}: {result.evaluated} expectations evaluated")
    return {"tree": tree.sha256, "result": result.to_json()}
