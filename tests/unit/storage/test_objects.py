from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from folder_store import FolderStore

from updraft.exceptions import DataError, LimitError
from updraft.storage import objects
from updraft.storage.objects import CheckpointInfo, Exported
from updraft_learner.contract import STATUS_LIMIT_BYTES, Keys, LearnerDone, LearnerStatus

LIMIT_BYTES = 1 << 20
KEYS = Keys("default")


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def put_checkpoint(store: FolderStore, name: str, **marker: Any) -> None:
    prefix = KEYS.checkpoint("job-1", name)
    store.put_bytes(f"{prefix}/state.pt", b"12345")
    files = {"state.pt": {"sha256": hashlib.sha256(b"12345").hexdigest(), "size": 5}}
    store.put_bytes(KEYS.checkpoint_marker("job-1", name), json.dumps({"files": files, **marker}).encode())


def names(store: FolderStore) -> list[str]:
    return [info.name for info in objects.list_checkpoints("default", "job-1", store=store)]


def test_status_and_completion_marker_are_read_when_they_are_there(store: FolderStore) -> None:
    place = ("default", "job-1", "train", 1, 1)
    assert objects.read_status(*place, store=store) is None
    assert objects.read_done(*place, store=store) is None
    status = LearnerStatus(t=1.0, phase="running", progress={"step": 3})
    store.put_bytes(KEYS.status("job-1", "train", 1, 1), status.to_json().encode())
    store.put_bytes(KEYS.done("job-1", "train", 1, 1), LearnerDone(t=2.0, files=4).to_json().encode())
    assert objects.read_status(*place, store=store) == status
    done = objects.read_done(*place, store=store)
    assert done is not None
    assert done["files"] == 4
    store.put_bytes(KEYS.status("job-1", "train", 1, 1), b'{"t": 1.0, "ph')
    assert objects.read_status(*place, store=store) is None


def test_a_word_that_is_too_large_to_be_a_sidecars_counts_as_none_and_is_told(
    store: FolderStore, caplog: pytest.LogCaptureFixture
) -> None:
    place, large = ("default", "job-1", "train", 1, 1), LearnerStatus(t=1.0, phase="x" * STATUS_LIMIT_BYTES)
    store.put_bytes(KEYS.status("job-1", "train", 1, 1), large.to_json().encode())
    store.put_bytes(KEYS.done("job-1", "train", 1, 1), large.to_json().encode())
    assert objects.read_status(*place, store=store) is None
    assert "status.json: it has 1048" in caplog.text
    assert objects.read_done(*place, store=store) is None
    assert "done.json: it has 1048" in caplog.text


def test_a_checkpoint_counts_when_its_marker_and_all_its_files_are_there(store: FolderStore) -> None:
    put_checkpoint(store, "step-10-a1", step=10, metrics={"loss": 0.5, "x": "nan"}, created="2026-01-01T00:00:00Z")
    store.put_bytes(f"{KEYS.checkpoint('job-1', 'step-20-a1')}/state.pt", b"12345")
    put_checkpoint(store, "step-30-a1", step=30)
    store.put_bytes(f"{KEYS.checkpoint('job-1', 'step-30-a1')}/state.pt", b"123")
    put_checkpoint(store, "step-40-a1", step=40, created="nonsense")
    store.put_bytes(f"{KEYS.checkpoint('job-1', 'step-50-a1')}/sub/MANIFEST.json", b"{}")
    (found,) = objects.list_checkpoints("default", "job-1", store=store)
    assert found == CheckpointInfo(
        "step-10-a1",
        10,
        1,
        1,
        found.metrics,
        5,
        "default/jobs/job-1/checkpoints/step-10-a1/",
        datetime(2026, 1, 1, tzinfo=UTC),
    )
    assert found.metrics["loss"] == 0.5


def test_the_latest_is_the_highest_step_then_attempt_then_learner_one(store: FolderStore) -> None:
    assert objects.latest_checkpoint("default", "job-1", store=store) is None
    put_checkpoint(store, "step-9-a1", step=9, attempt=1, created=100.0)
    put_checkpoint(store, "step-10-a2-l2", step=10, attempt=2, learner=2, created=102.0)
    put_checkpoint(store, "step-10-a2", step=10, attempt=2, learner=1, created=102.0)
    put_checkpoint(store, "step-10-a1", step=10, attempt=1, created=103.0)
    put_checkpoint(store, "final-a2", attempt=2, created=101.0)
    assert names(store) == ["final-a2", "step-9-a1", "step-10-a1", "step-10-a2-l2", "step-10-a2"]
    assert objects.latest_checkpoint("default", "job-1", store=store) == "step-10-a2"
    assert objects.latest_checkpoint("default", "job-2", store=store) is None


def test_deleting_takes_one_checkpoint_only(store: FolderStore) -> None:
    put_checkpoint(store, "step-1-a1", step=1, created=1)
    put_checkpoint(store, "step-1-a10", step=1, created=2)
    objects.delete_checkpoint("default", "job-1", "step-1-a1", store=store)
    objects.delete_checkpoint("default", "job-1", "step-1-a1", store=store)
    assert names(store) == ["step-1-a10"]
    for name in ("", "..", "a/b"):
        with pytest.raises(DataError):
            objects.delete_checkpoint("default", "job-1", name, store=store)


ML_MODEL = b"flavors: {onnx: {}, python_function: {loader_module: mlflow.onnx}}"


def put_export(
    store: FolderStore, extra: dict[str, bytes] | None = None, *, done: bool = True, **changes: Any
) -> dict[str, Any]:
    prefix = f"{KEYS.results('job-1', 'export', 1)}/export/"
    found = {"model/MLmodel": ML_MODEL, "model/requirements.txt": b"onnxruntime==1.31.1", **(extra or {})}
    report = {
        "attempt": 2,
        "formats": {"onnx": {"max_abs_difference": 1.5e-8}, "torch": {}},
        "files": {path: {"sha256": hashlib.sha256(d).hexdigest(), "size": len(d)} for path, d in found.items()},
        "model_class": "net.Net",
        **changes,
    }
    for path, content in found.items():
        store.put_bytes(f"{prefix}{path}", content)
    store.put_bytes(f"{prefix}export.json", json.dumps(report).encode())
    if done:
        store.put_bytes(KEYS.done("job-1", "export", 2, 1), b'{"t": 1.0}')
    return report


def fetch(store: FolderStore, folder: Path, *, limit_bytes: int = LIMIT_BYTES, trusted: bool = False) -> Any:
    return objects.fetch_export("default", "job-1", 2, folder, trust_code=trusted, limit_bytes=limit_bytes, store=store)


def test_an_export_is_fetched_and_verified(store: FolderStore, tmp_path: Path) -> None:
    assert fetch(store, tmp_path / "a") is None
    report = put_export(store)
    assert fetch(store, tmp_path / "a") == Exported(
        tmp_path / "a" / "model", ("onnx", "torch"), "net.Net", "onnx differs by at most 1.5e-08, torch", report
    )
    assert (tmp_path / "a" / "model" / "MLmodel").read_bytes() == ML_MODEL


def test_an_export_that_would_fill_the_workers_disk_or_memory_is_refused(store: FolderStore, tmp_path: Path) -> None:
    put_export(store)
    key = f"{KEYS.results('job-1', 'export', 1)}/export/export.json"
    report = json.loads(store.get_bytes(key) or b"")
    report["files"]["model/MLmodel"]["size"] = 1 << 60
    store.put_bytes(key, json.dumps(report).encode())
    with pytest.raises(LimitError, match="the worker has"):
        fetch(store, tmp_path / "out", limit_bytes=1 << 61)
    store.put_bytes(key, b" " * (objects.REPORT_LIMIT_BYTES + 1))
    with pytest.raises(DataError, match="larger than"):
        fetch(store, tmp_path / "out")


def test_an_export_over_the_limit_is_refused_before_anything_is_fetched(store: FolderStore, tmp_path: Path) -> None:
    put_export(store)
    with pytest.raises(LimitError, match=r"the limit \(UPDRAFT_EXPORT_LIMIT_BYTES\) is 10 bytes"):
        fetch(store, tmp_path / "out", limit_bytes=10)
    assert not (tmp_path / "out").exists()
    key = f"{KEYS.results('job-1', 'export', 1)}/export/export.json"
    store.put_bytes(key, b"[" * 100_000)
    with pytest.raises(DataError, match="cannot be read"):
        fetch(store, tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"files": {"model/MLmodel": {"sha256": "a" * 64, "size": 1}}}, "does not match its digest"),
        ({"files": {"../../evil": {"sha256": "a" * 64, "size": 1}}}, "not of the known form"),
        ({"files": {"model/model.onnx": {"sha256": "a" * 64, "size": 1}}}, "is not in the store"),
        ({"files": {"model/MLmodel": {"sha256": "a" * 64, "size": -1}}}, "not of the known form"),
        ({"files": {}}, "there is no folder `model`"),
        ({"formats": None}, "not of the known form"),
        ({"attempt": 1}, "is of attempt 1, the newest is 2"),
        ({"attempt": None}, "not of the known form"),
    ],
)
def test_a_damaged_export_is_refused(store: FolderStore, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    put_export(store, **changes)
    with pytest.raises(DataError, match=message):
        fetch(store, tmp_path / "out")
    assert not (tmp_path / "evil").exists()


def test_an_export_that_the_training_forged_is_not_seen(store: FolderStore, tmp_path: Path) -> None:
    report = put_export(store)
    forged, own = KEYS.results("job-1", "train", 1), KEYS.results("job-1", "export", 1)
    for item in list(store.list(f"{own}/")):
        store.put_bytes(item.key.replace(own, forged), store.get_bytes(item.key) or b"")
        store.delete(item.key)
    assert report["files"]
    assert fetch(store, tmp_path / "out") is None


def test_an_export_without_its_pods_completion_marker_is_refused(store: FolderStore, tmp_path: Path) -> None:
    put_export(store, done=False)
    with pytest.raises(DataError, match="attempt 2 has no completion marker"):
        fetch(store, tmp_path / "out")


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("model/code/evil.py", b"import os", "is no file that the platform's export writes"),
        ("model/data/model.pkl", b"cos", "is no file that the platform's export writes"),
        ("model/requirements.txt", b"evil @ https://evil.example/evil.whl", "requirements.txt names"),
        ("model/MLmodel", b"flavors: {python_function: {loader_module: evil}}", "the platform's export writes onnx"),
        ("model/MLmodel", b"flavors: {onnx: {}, python_function: {loader_module: evil}}", "the loader 'evil'"),
        ("model/MLmodel", b"flavors: {onnx: {code: code}}", "brings code"),
        ("model/MLmodel", b"flavors: {sklearn: {}}", "flavours"),
        ("model/MLmodel", b"flavors: !!python/object/apply:os.system [id]", "cannot be read"),
    ],
)
def test_a_model_that_runs_code_when_it_is_loaded_is_registered_for_trust_code_only(
    store: FolderStore, tmp_path: Path, path: str, content: bytes, message: str
) -> None:
    put_export(store, {path: content})
    with pytest.raises(DataError, match=message):
        fetch(store, tmp_path / "out")
    with pytest.raises(DataError, match=message):  # the manifest trusts its own MLflow folder, not what export makes
        fetch(store, tmp_path / "other", trusted=True)
    put_export(store, {path: content}, formats={"mlflow": {}})
    with pytest.raises(DataError, match="the manifest does not say trust_code"):
        fetch(store, tmp_path / "untrusted")
    assert fetch(store, tmp_path / "trusted", trusted=True).formats == ("mlflow",)
