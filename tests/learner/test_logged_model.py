"""The export's sidecar fetches the model that the program logged with MLflow."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from learner.sidecar_fakes import CONFIG, make_paths

from updraft_learner.contract import ExitCode
from updraft_learner.mlflow_rest import TAG_JOB, TAG_MODEL_NEWEST, Answer, ServerUnavailable
from updraft_learner.pod import PodPaths
from updraft_learner.sidecar.logged_model import fetch_logged_model
from updraft_learner.stage import StageError

EXPORT = replace(CONFIG, role="export", own_model=True)


class Server:
    """An MLflow server with logged models, newest first."""

    run_id = "run1"

    def __init__(self, *models: str, asked: str | None = None) -> None:
        self.models = [self.model(name) for name in models]
        self.files: dict[str, bytes] = {}
        for name in models:
            self.files |= {f"real/{name}/MLmodel": name.encode(), f"real/{name}/data/weights.bin": b"w" * 100}
        self.asked, self.down, self.short = asked, False, False

    @staticmethod
    def model(name: str, status: str = "LOGGED_MODEL_READY", *tags: str) -> dict[str, Any]:
        info = {"model_id": name, "name": name, "status": status, "artifact_uri": f"mlflow-artifacts:/real/{name}"}
        return {"info": {**info, "tags": [{"key": key, "value": "x"} for key in tags]}}

    def call(self, method: str, path: str, *, body: dict[str, Any]) -> Answer:
        if self.down:
            raise ServerUnavailable("MLflow cannot be reached (refused)", ambiguous=False)
        assert (method, path) == ("POST", "logged-models/search")
        assert (body["experiment_ids"], body["filter"]) == (["7"], "source_run_id = 'run1'")
        return Answer(200, {"models": self.models})

    def get(self, path: str, query: dict[str, Any]) -> Answer:
        tags = [] if self.asked is None else [{"key": TAG_MODEL_NEWEST, "value": self.asked}]
        return Answer(200, {"run": {"data": {"tags": tags}}})

    def list_artifacts(self, path: str) -> Answer:
        below = {
            name.removeprefix(f"{path}/"): data for name, data in self.files.items() if name.startswith(f"{path}/")
        }
        plain = [{"path": name, "file_size": len(data)} for name, data in below.items() if "/" not in name]
        folders = sorted({name.partition("/")[0] for name in below if "/" in name})
        return Answer(200, {"files": [*plain, *({"path": name, "is_dir": True} for name in folders)]})

    @contextmanager
    def open_artifact(self, path: str) -> Iterator[Any]:
        content = self.files[path][: 3 if self.short else None]
        yield SimpleNamespace(status=200, read=io.BytesIO(content).read)


def asks(model_id: str) -> str:
    return json.dumps({"name": "digits", "model_id": model_id})


@pytest.fixture
def paths(tmp_path: Path) -> PodPaths:
    return make_paths(tmp_path / "pod")


def fetched(paths: PodPaths, server: Server) -> str | None:
    fetch_logged_model(EXPORT, paths, server, io.StringIO())  # type: ignore[arg-type]
    model = paths.result / "model"
    if not model.exists():
        return None
    assert (model / "data" / "weights.bin").read_bytes() == b"w" * 100
    return (model / "MLmodel").read_text()


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(None, "newer"), (asks("older"), "older"), (asks("gone"), "newer"), (asks(""), "newer"), ("no JSON", "newer")],
)
def test_the_model_that_was_asked_for_or_else_the_newest(paths: PodPaths, asked: str | None, expected: str) -> None:
    assert fetched(paths, Server("newer", "older", asked=asked)) == expected


def test_the_platforms_own_and_unfinished_models_are_none_of_the_programs(paths: PodPaths) -> None:
    server = Server("a", "b", "c")
    server.models[0] = Server.model("a", "LOGGED_MODEL_READY", TAG_JOB)
    server.models[1] = Server.model("b", "LOGGED_MODEL_PENDING")
    assert fetched(paths, server) == "c"


def test_a_folder_that_the_program_saved_goes_first_and_no_model_is_no_error(paths: PodPaths) -> None:
    assert fetched(paths, Server()) is None
    (paths.result / "model" / "data").mkdir(parents=True)
    (paths.result / "model" / "MLmodel").write_text("saved")
    (paths.result / "model" / "data" / "weights.bin").write_bytes(b"w" * 100)
    assert fetched(paths, Server("logged")) == "saved"


def test_what_cannot_be_read_ends_the_pod_with_a_reason(paths: PodPaths) -> None:
    away = Server("a")
    away.down = True
    with pytest.raises(StageError, match="the logged model cannot be read: MLflow cannot be reached") as caught:
        fetched(paths, away)
    assert caught.value.code == ExitCode.STORAGE
    short = Server("a")
    short.short = True
    with pytest.raises(StageError, match="has 3 of 100 bytes"):
        fetched(paths, short)
    assert not (paths.result / "model").exists()
    outside = Server("a")
    outside.files["real/a/../../etc/x"] = b"x"
    with pytest.raises(StageError, match="the logged model cannot be read") as caught:
        fetched(paths, outside)
    assert caught.value.code == ExitCode.DATA
