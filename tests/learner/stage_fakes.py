"""A job's configuration, and what its staging finds in the store."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from folder_store import FolderStore

from updraft_learner.contract import Keys, PodConfig
from updraft_learner.trees import scan

KEYS = Keys("tenants/default")
CONFIG = PodConfig(
    job_id="job-1",
    tenant="default",
    role="train",
    attempt=2,
    learner=1,
    learners=1,
    bucket="updraft",
    prefix="tenants/default",
    mlflow_run_id="run",
    mlflow_experiment_id="7",
    params={"lr": 0.1},
)


def upload(store: FolderStore, folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    tree, blobs = scan(folder)
    for digest, path in blobs.items():
        store.put_file(KEYS.blob(digest), path)
    store.put_bytes(KEYS.tree(tree.sha256), tree.to_json())
    return tree.sha256


def put_checkpoint(store: FolderStore, name: str, files: dict[str, bytes], **more: object) -> None:
    facts = {path: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)} for path, data in files.items()}
    for path, data in files.items():
        store.put_bytes(f"{KEYS.checkpoint('job-1', name)}/{path}", data)
    store.put_bytes(KEYS.checkpoint_marker("job-1", name), json.dumps({"name": name, "files": facts, **more}).encode())
