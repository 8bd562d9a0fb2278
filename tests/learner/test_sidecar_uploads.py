"""Checkpoints, results and log files on their way to the store, and the program's folders as hostile ground."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learner.sidecar_fakes import CONFIG, FailingStore, make_paths

from updraft_learner.contract import Keys, PodConfig
from updraft_learner.pod import PodPaths
from updraft_learner.record.disk import POD_DISK, PodDisk
from updraft_learner.record.files import find_below, open_below
from updraft_learner.record.report import Warnings
from updraft_learner.sidecar.checkpoints import CheckpointUploader
from updraft_learner.sidecar.mirror import Mirror
from updraft_learner.stage import stage
from updraft_learner.store import StorageError

KEYS = Keys("t")


@pytest.fixture
def paths(tmp_path: Path) -> PodPaths:
    return make_paths(tmp_path / "pod")


@pytest.fixture
def store(tmp_path: Path) -> FailingStore:
    return FailingStore(tmp_path / "s3")


def write_checkpoint(
    paths: PodPaths, name: str, files: dict[str, bytes], *, at: int = 0, manifest: dict[str, Any] | None = None
) -> Path:
    folder = paths.checkpoints / name
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    if manifest is not None:
        facts = {path: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)} for path, data in files.items()}
        (folder / "checkpoint.json").write_text(json.dumps({"files": facts, **manifest}))
    (folder / "COMPLETE").touch()
    if at:
        os.utime(folder / "COMPLETE", ns=(at * 10**9, at * 10**9))
    return folder


def watch(paths: PodPaths, store: FailingStore, config: PodConfig = CONFIG) -> CheckpointUploader:
    return CheckpointUploader(config, paths, store, Warnings())


def marker(store: FailingStore, name: str) -> dict[str, Any]:
    return dict(json.loads(store.get_bytes(KEYS.checkpoint_marker("job-1", name)) or b"null") or {})


def test_a_finished_checkpoint_is_stored_and_its_marker_is_written_last(paths: PodPaths, store: FailingStore) -> None:
    manifest = {
        "step": 7,
        "metrics": {"acc": 0.5, "bad": float("nan")},
        "attempt": 1,
        "rank": 0,
        "created": "2026-01-02T03:04:05Z",
    }
    write_checkpoint(paths, "step-7", {"state.pt": b"abc", "part/x": b"d"}, manifest=manifest)
    (paths.checkpoints / "half").mkdir()
    (paths.checkpoints / ".tmp-step-8").mkdir()
    watched = watch(paths, store)
    watched.poll()
    prefix = "t/jobs/job-1/checkpoints/step-7-a1"
    assert store.written[-1] == f"{prefix}/MANIFEST.json"
    assert set(store.written[:-1]) == {
        f"{prefix}/{name}" for name in ("state.pt", "part/x", "COMPLETE", "checkpoint.json")
    }
    found = marker(store, "step-7-a1")
    assert found["files"]["state.pt"] == {"sha256": hashlib.sha256(b"abc").hexdigest(), "size": 3}
    assert {
        key: found[key] for key in ("name", "local", "job", "attempt", "learner", "step", "metrics", "created")
    } == {
        "name": "step-7-a1",
        "local": "step-7",
        "job": "job-1",
        "attempt": 1,
        "learner": 1,
        "step": 7,
        "metrics": {"acc": 0.5, "bad": None},
        "created": "2026-01-02T03:04:05Z",
    }
    assert watched.final == "step-7-a1"
    assert watched.unfinished() == ["half"]
    assert os.readlink(paths.checkpoints / "latest") == "step-7"
    watched.poll()
    watch(paths, store).poll()
    assert len(store.written) == 5


def test_names_tell_attempt_and_learner_and_steps_are_found_in_names(paths: PodPaths, store: FailingStore) -> None:
    write_checkpoint(paths, "epoch-3-step-120", {"w": b"1"})
    write_checkpoint(paths, "model", {"w": b"1"})
    watch(paths, store, replace(CONFIG, attempt=3, learner=2, learners=2)).poll()
    assert marker(store, "epoch-3-step-120-a3-l2")["step"] == 120
    assert marker(store, "model-a3-l2")["step"] is None


def test_a_name_that_is_used_again_never_touches_the_stored_one(paths: PodPaths, store: FailingStore) -> None:
    write_checkpoint(paths, "model", {"w": b"one"}, at=1)
    watched = watch(paths, store)
    watched.poll()
    write_checkpoint(paths, "model", {"w": b"two"}, at=2)
    watched.poll()
    assert store.get_bytes("t/jobs/job-1/checkpoints/model-a1/w") == b"one"
    assert store.get_bytes("t/jobs/job-1/checkpoints/model-a1-v2/w") == b"two"
    assert watched.final == "model-a1-v2"


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: (folder / "w").write_bytes(b"onf"), "file w does not match its digest"),
        (lambda folder: (folder / "w").write_bytes(b"o"), "file w has 1 bytes instead of 3"),
        (lambda folder: (folder / "w").unlink(), "file w is missing"),
        (lambda folder: (folder / "checkpoint.json").write_text("{"), "checkpoint.json is unreadable"),
    ],
)
def test_a_damaged_checkpoint_is_set_aside(paths: PodPaths, store: FailingStore, spoil: Any, reason: str) -> None:
    write_checkpoint(paths, "step-1", {"w": b"one"}, at=1, manifest={"step": 1})
    spoil(write_checkpoint(paths, "step-2", {"w": b"one"}, at=2, manifest={"step": 2}))
    watched = watch(paths, store)
    watched.poll()
    assert marker(store, "step-2-a1") == {}
    assert watched.final == "step-1-a1"
    assert (paths.checkpoints / ".bad-step-2").is_dir()
    assert watched.quarantined == [f"checkpoint step-2: {reason}; set aside as .bad-step-2"]
    watched.poll()
    assert os.readlink(paths.checkpoints / "latest") == "step-1"


def test_a_checkpoint_that_changes_during_the_upload_waits_for_the_next_round(
    paths: PodPaths, store: FailingStore
) -> None:
    folder = write_checkpoint(paths, "step-1", {"w": b"one"}, at=1)

    def rewrite(operation: str, key: str) -> bool:
        if key.endswith("/w") and (folder / "w").read_bytes() == b"one":
            (folder / "w").write_bytes(b"longer")
        return False

    store.fails = rewrite
    watched = watch(paths, store)
    watched.poll()
    assert marker(store, "step-1-a1") == {}
    watched.poll()
    assert marker(store, "step-1-a1")["files"]["w"]["size"] == 6


def test_while_the_store_is_away_nothing_is_marked_or_deleted(paths: PodPaths, store: FailingStore) -> None:
    for step in range(1, 6):
        write_checkpoint(paths, f"step-{step}", {"w": b"x" * step}, at=step)
    store.fails = lambda operation, key: key.endswith("MANIFEST.json")
    watched = watch(paths, store)
    with pytest.raises(StorageError):
        watched.poll()
    assert watched.pending_bytes == 15
    assert [item.uploaded for item in watched.shown()] == [False] * 5
    assert len(list(paths.checkpoints.glob("step-*"))) == 5
    store.fails = lambda *_: False
    watched.poll()
    assert [item.name for item in watched.shown()] == [f"step-{step}-a1" for step in (5, 4, 3, 2, 1)]
    assert watched.final == "step-5-a1"
    assert sorted(path.name for path in paths.checkpoints.glob("step-*")) == ["step-4", "step-5"]
    assert watched.pending_bytes == 0


def test_a_restored_checkpoint_is_not_stored_again(paths: PodPaths, store: FailingStore, tmp_path: Path) -> None:
    write_checkpoint(paths, "step-1", {"w": b"one", "deep/v": b"2"}, manifest={"step": 1})
    watch(paths, store).poll()
    before = list(store.written)
    config = replace(CONFIG, attempt=2, restore_checkpoint="step-1-a1")
    second = PodPaths(tmp_path / "second")
    stage(config, second, store)
    watched = watch(second, store, config)
    watched.poll()
    assert store.written == before
    assert watched.final is None
    write_checkpoint(second, "step-2", {"w": b"two"})
    watched.poll()
    assert watched.final == "step-2-a2"


def test_a_link_out_of_the_pods_folders_is_never_read(paths: PodPaths, store: FailingStore, tmp_path: Path) -> None:
    secret = tmp_path / "credentials.json"
    secret.write_text("hush")
    folder = write_checkpoint(paths, "step-1", {"w": b"one"})
    (folder / "leak").symlink_to(secret)
    (paths.result / "leak").symlink_to(secret)
    (paths.result / "folder").symlink_to(tmp_path)
    (paths.result / "best").symlink_to("epoch/w")
    (paths.result / "epoch").mkdir()
    (paths.result / "epoch/w").write_bytes(b"w")
    os.mkfifo(paths.result / "pipe")
    (paths.logs).rmdir()
    paths.logs.symlink_to(tmp_path)
    watch(paths, store).poll()
    warnings = Warnings()
    for name in ("result", "logs"):
        Mirror(paths.root, name, store, name, paths.private / f"{name}.json", warnings).poll(final=True)
    assert sorted(store.written) == ["result/best", "result/epoch/w"]
    assert not any(b"hush" in path.read_bytes() for path in store.root.rglob("*") if path.is_file())
    assert "is a link out of the folder" in warnings.texts()[0]
    for path in ("result/leak", "result/pipe", "logs/credentials.json", "result/folder/credentials.json"):
        with pytest.raises(OSError, match=r"symbolic link|not a regular file|Not a directory"):
            open_below(paths.root, path)
    assert find_below(paths.root, "nowhere") == ({}, [])


def mirror(paths: PodPaths, store: FailingStore, disk: PodDisk = POD_DISK) -> Mirror:
    return Mirror(paths.root, "result", store, "r", paths.private / "result.json", Warnings(), disk=disk)


def test_results_are_stored_when_stable_and_again_when_changed(paths: PodPaths, store: FailingStore) -> None:
    (paths.result / "a").write_bytes(b"1")
    results = mirror(paths, store)
    results.poll()
    assert (store.written, results.pending_bytes) == ([], 1)
    results.poll()
    assert (store.written, results.pending_bytes) == (["r/a"], 0)
    (paths.result / "a").write_bytes(b"22")
    (paths.result / "b").mkdir()
    (paths.result / "b/c").write_bytes(b"333")
    results = mirror(paths, store)
    results.poll(final=True)
    assert sorted(store.written) == ["r/a", "r/a", "r/b/c"]
    assert (results.files, results.size_bytes) == (2, 5)
    (paths.result / "a").unlink()
    results.poll(final=True)
    assert [item.key for item in store.list("")] == ["r/b/c"]


class CountingDisk(PodDisk):
    def __init__(self) -> None:
        self.saves = 0

    def write_json(self, path: Path, value: Any) -> None:
        self.saves += 1
        super().write_json(path, value)


def test_many_small_results_cost_no_more_than_their_number(paths: PodPaths, store: FailingStore) -> None:
    disk = CountingDisk()
    for number in range(2_000):
        (paths.result / f"f{number}").write_bytes(b"x")
    results = mirror(paths, store, disk)
    results.poll(final=True)
    assert (len(store.written), results.files, results.pending_bytes) == (2_000, 2_000, 0)
    assert disk.saves < 50
    results.poll(final=True)
    assert len(store.written) == 2_000


def test_what_was_stored_before_a_failure_is_remembered(paths: PodPaths, store: FailingStore) -> None:
    for number in range(20):
        (paths.result / f"f{number:02}").write_bytes(b"x")
    store.fails = lambda operation, key: key == "r/f10"
    results = mirror(paths, store)
    with pytest.raises(StorageError):
        results.poll(final=True)
    store.fails = lambda operation, key: False
    again = mirror(paths, store)
    assert again.files == results.files < 20
    again.poll(final=True)
    assert (again.files, again.pending_bytes) == (20, 0)


def test_restored_results_are_not_stored_again_unless_changed(
    paths: PodPaths, store: FailingStore, tmp_path: Path
) -> None:
    for name in ("model", "report"):
        store.put_bytes(f"{KEYS.results('job-1', 'train', 1)}/{name}", b"old")
    store.written.clear()
    config = replace(CONFIG, role="evaluate", restore_results=True)
    pod = PodPaths(tmp_path / "evaluate")
    stage(config, pod, store)
    (pod.result / "report").write_bytes(b"new!")
    baseline = json.loads(pod.restored_results_file.read_text())
    Mirror(pod.root, "result", store, "r", pod.private / "result.json", Warnings(), baseline).poll(final=True)
    assert store.written == ["r/report"]


def test_of_an_earlier_attempts_results_only_what_changed_is_stored_and_what_was_deleted_goes(
    paths: PodPaths, store: FailingStore, tmp_path: Path
) -> None:
    prefix = KEYS.results("job-1", "train", 1)
    for name in ("kept", "changed", "deleted"):
        store.put_bytes(f"{prefix}/{name}", b"old")
    store.written.clear()
    pod = PodPaths(tmp_path / "second")
    stage(replace(CONFIG, attempt=2, restore_own_results=True), pod, store)
    (pod.result / "changed").write_bytes(b"new!")
    (pod.result / "deleted").unlink()
    baseline = json.loads(pod.restored_results_file.read_text())
    state = pod.private / "result.json"
    for _ in range(2):  # and a restarted sidecar
        own = Mirror(pod.root, "result", store, prefix, state, Warnings(), baseline, owned=True)
        own.poll(final=True)
    assert store.written == [f"{prefix}/changed"]
    assert [(item.key[len(prefix) + 1 :], item.size) for item in store.list(prefix)] == [("changed", 4), ("kept", 3)]
