"""Fetch the model that the training logged with MLflow, for an export that takes the program's own MLflow model.

`log_model` sends a model to MLflow and leaves no file in RESULT_DIR. The export's sidecar fetches it into
RESULT_DIR/model, unless the program has saved a model there itself.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from updraft_learner.below import facts_below, make_folder, replacing
from updraft_learner.contract import RESULT_DIR, ExitCode, PodConfig
from updraft_learner.mlflow_rest import (
    TAG_JOB,
    TAG_MODEL_NEWEST,
    ServerUnavailable,
    TrackingServer,
    artifact_path,
)
from updraft_learner.pod import PodPaths
from updraft_learner.stage import StageError
from updraft_learner.trees import TreeError, megabytes, safe_path

MODEL_FOLDER = f"{RESULT_DIR}/model"
PART_FOLDER = f"{RESULT_DIR}/.logged-model"
FILES = 10_000
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class _File:
    path: str  # below the model's folder
    size: int


def fetch_logged_model(config: PodConfig, paths: PodPaths, server: TrackingServer, out: TextIO) -> None:
    """Write the files of the logged model to RESULT_DIR/model; do nothing if there is a folder, or no such model.

    The model is the one that the program asked to register last, or else the one that it logged last.
    Raises StageError.
    """
    if facts_below(paths.root, paths.below(MODEL_FOLDER)) is not None:
        return
    try:
        model = _chosen(config, server)
        if model is None:
            return
        root = artifact_path(str(model["info"]["artifact_uri"]))
        files = list(_files(server, root))
        size_bytes = sum(file.size for file in files)
        name = f"logged model {model['info'].get('name') or ''} ({model['info']['model_id']})"
        free_bytes = shutil.disk_usage(paths.root).free
        if size_bytes > free_bytes:
            sizes = f"{megabytes(size_bytes)}, but the pod's disk has {megabytes(free_bytes)} free"
            raise StageError(ExitCode.STORAGE, f"{name} needs {sizes}")
        shutil.rmtree(paths.at(PART_FOLDER), ignore_errors=True)  # of a sidecar that ended in the middle
        for file in files:
            _fetch(server, root, file, paths, paths.below(PART_FOLDER))
        os.rename(paths.at(PART_FOLDER), paths.at(MODEL_FOLDER))
    except ServerUnavailable as exc:
        raise StageError(ExitCode.STORAGE, f"the logged model cannot be read: {exc}") from exc
    except TreeError as exc:
        raise StageError(ExitCode.DATA, f"the logged model cannot be read: {exc}") from exc
    print(f"stage: {name}: {len(files)} files, {megabytes(size_bytes)}", file=out, flush=True)


def _chosen(config: PodConfig, server: TrackingServer) -> Mapping[str, Any] | None:
    body = {
        "experiment_ids": [config.mlflow_experiment_id],
        "filter": f"source_run_id = '{config.mlflow_run_id}'",
        "order_by": [{"field_name": "creation_time", "ascending": False}],
        "max_results": 50,
    }
    answer = server.call("POST", "logged-models/search", body=body)
    if not answer.ok:
        raise ServerUnavailable(f"MLflow does not list the run's models: {answer.message}", ambiguous=False)
    models = [model for model in answer.body.get("models", []) if _is_ready(model)]
    wanted = _asked_for(server)
    named = [model for model in models if wanted is not None and model["info"]["model_id"] == wanted]
    return next(iter(named or models), None)


def _is_ready(model: Mapping[str, Any]) -> bool:
    """Return whether it is a model of the program's, with all its files."""
    platforms = any(tag.get("key") == TAG_JOB for tag in model["info"].get("tags") or ())
    return not platforms and str(model["info"].get("status")) == "LOGGED_MODEL_READY"


def _asked_for(server: TrackingServer) -> str | None:
    """Return the id of the model that the program asked to register last."""
    answer = server.get("runs/get", {"run_id": server.run_id})
    if not answer.ok:
        raise ServerUnavailable(f"MLflow does not give the run: {answer.message}", ambiguous=False)
    tags = {tag["key"]: tag["value"] for tag in answer.body["run"]["data"].get("tags", [])}
    try:
        found = json.loads(tags.get(TAG_MODEL_NEWEST, "{}")).get("model_id")
    except ValueError:
        return None
    return str(found) if found else None


def _files(server: TrackingServer, root: str) -> Iterator[_File]:
    folders, seen = [""], 0
    while folders:
        folder = folders.pop()
        answer = server.list_artifacts(f"{root}/{folder}".rstrip("/"))
        if not answer.ok:
            raise ServerUnavailable(f"MLflow does not list the model's files: {answer.message}", ambiguous=False)
        for item in answer.body.get("files", []):
            path = safe_path(f"{folder}/{item['path']}".lstrip("/"))
            if item.get("is_dir"):
                folders.append(path)
                continue
            seen += 1
            if seen > FILES:
                raise TreeError(f"it has more than {FILES} files")
            yield _File(path, int(item.get("file_size") or 0))


def _fetch(server: TrackingServer, root: str, file: _File, paths: PodPaths, folder: str) -> None:
    target = f"{folder}/{file.path}"
    make_folder(paths.root, target.rpartition("/")[0])
    with server.open_artifact(f"{root}/{file.path}") as response, replacing(paths.root, target) as content:
        if response.status >= 300:
            raise ServerUnavailable(f"MLflow answered {response.status} for {file.path!r}", ambiguous=False)
        size = 0
        while chunk := response.read(CHUNK_BYTES):
            content.write(chunk)
            size += len(chunk)
        if size != file.size:
            raise ServerUnavailable(f"{file.path!r} has {size} of {file.size} bytes", ambiguous=False)
