"""Lay out the work of the pod that builds an environment, before its program starts. Called by
`updraft_learner.stage`."""

from __future__ import annotations

import importlib
import json
import shutil
from itertools import islice
from pathlib import Path
from typing import TextIO

from updraft_learner import contract
from updraft_learner.below import make_folder, replacing, write_text_below
from updraft_learner.contract import Keys, PodConfig
from updraft_learner.environment import builder
from updraft_learner.environment.documents import DOCUMENT_LIMIT_BYTES, KNOWN, EnvironmentRequest
from updraft_learner.pod import PodPaths
from updraft_learner.prepare.errors import SourceError
from updraft_learner.store import ObjectStore


def lay_out_build(config: PodConfig, paths: PodPaths, store: ObjectStore, uv: Path, out: TextIO) -> None:
    """Write the work, uv and the builder where the program finds them.

    `uv`: the sidecar's own. Raises SourceError for a request that is not there, StorageError.
    """
    request = read_request(config, store)
    folder = paths.below(contract.BUILD_DIR)
    make_folder(paths.root, folder)
    listed = islice(store.list(Keys(config.prefix).environment("")), KNOWN)
    known = [item.key.rpartition("/")[2].removesuffix(".json") for item in listed]
    work = {
        **json.loads(request.to_json()),
        "label": request.file or ", ".join(request.requirements)[:300],
        "indexes": [{"url": url} for url in request.indexes],
        "known": known,
        "code": Path(contract.CODE_DIR).name,
    }
    write_text_below(paths.root, f"{folder}/{builder.WORK}", json.dumps(work))
    _copy(Path(builder.__file__), paths.root, f"{folder}/builder.py")
    _copy(uv, paths.root, f"{folder}/uv")
    print(f"stage: work for uv, {len(known)} environments are known", file=out, flush=True)


def read_request(config: PodConfig, store: ObjectStore) -> EnvironmentRequest:
    """Return what the platform asked for. Raises SourceError where it is missing."""
    key = Keys(config.prefix).environment_request(config.job_id, config.attempt)
    text = store.get_bytes(key, DOCUMENT_LIMIT_BYTES)
    if text is None:
        raise SourceError("refused", "what is to be built is not in the object store; submit the job again")
    return EnvironmentRequest.from_json(text)


def own_uv() -> Path:
    """Return the uv of the sidecar's environment. Raises SourceError where it has none."""
    try:
        return Path(str(importlib.import_module("uv").find_uv_bin()))  # of the extra `sidecar`, which tests lack
    except (ImportError, FileNotFoundError) as exc:
        raise SourceError("refused", "the sidecar's image has no uv; build it anew") from exc


def _copy(source: Path, root: Path, relative: str) -> None:
    with source.open("rb") as content, replacing(root, relative, mode=0o775) as file:
        shutil.copyfileobj(content, file, 1 << 20)
