"""Staging: what the program finds, and how the pod ends when something is missing or wrong."""

from __future__ import annotations

import errno
import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from folder_store import FolderStore
from learner.stage_fakes import CONFIG, KEYS, put_checkpoint, upload

from updraft_learner import contract, stage
from updraft_learner.contract import DataMount, ExitCode, PodConfig
from updraft_learner.pod import PodError, PodPaths, read_credentials
from updraft_learner.record.report import Warnings
from updraft_learner.sidecar.mirror import Mirror
from updraft_learner.stage import ProgressPrinter, StageError, stage_once
from updraft_learner.store import READ_LIMIT_BYTES, StorageError, StoredObject
from updraft_learner.trees import scan


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "s3")


@pytest.fixture
def paths(tmp_path: Path) -> PodPaths:
    return PodPaths(tmp_path / "pod")


def run(config: PodConfig, paths: PodPaths, store: FolderStore) -> str:
    out = io.StringIO()
    stage.stage(config, paths, store, out)
    return out.getvalue()


def failed(config: PodConfig, paths: PodPaths, store: FolderStore) -> StageError:
    with pytest.raises(StageError) as caught:
        stage_once(config, paths, store, io.StringIO())
    assert not paths.staged_file.exists()
    return caught.value


def test_code_data_and_params_are_laid_out_for_another_user_of_the_group(
    tmp_path: Path, store: FolderStore, paths: PodPaths
) -> None:
    code = upload(store, tmp_path / "code", {"train.py": "print()", "lib/a.py": "1"})
    data = upload(store, tmp_path / "data", {"x.csv": "1,2"})
    config = replace(CONFIG, code_tree=code, data=(DataMount(data, "training/a"), DataMount(data)))
    text = run(config, paths, store)
    assert scan(paths.code)[0].sha256 == code
    assert (paths.data / "training/a/x.csv").read_text() == "1,2"
    assert (paths.data / "x.csv").read_text() == "1,2"
    assert json.loads(paths.at(contract.PARAMS_FILE).read_text()) == {"lr": 0.1}
    for folder in (paths.code, paths.result, paths.checkpoints, paths.logs, paths.io, paths.data / "training"):
        assert folder.stat().st_mode & 0o7777 == 0o2775
    assert paths.private.stat().st_mode & 0o777 == 0o700
    assert "stage: code: 2/2 files, 0.0/0.0 MB" in text
    assert "4 already there" not in run(config, paths, store)
    assert "stage: code: 2/2 files, 0.0/0.0 MB, 0.0 MB/s, 2 already there" in run(config, paths, store)


def test_progress_is_printed_at_most_every_two_seconds() -> None:
    now = [0.0]
    out = io.StringIO()
    progress = ProgressPrinter("data", 5, 50_000_000, out, clock=lambda: now[0])
    for second in (0.5, 1.0, 2.0, 2.5, 4.0):
        now[0] = second
        progress.add(10_000_000)
    assert out.getvalue().splitlines() == [
        "stage: data: 3/5 files, 30.0/50.0 MB, 15.0 MB/s",
        "stage: data: 5/5 files, 50.0/50.0 MB, 12.5 MB/s",
    ]


def test_a_checkpoint_comes_back_under_the_name_the_program_gave_it(store: FolderStore, paths: PodPaths) -> None:
    put_checkpoint(store, "step-7-a1", {"state.pt": b"abc", "deep/x": b"d", "COMPLETE": b""}, local="step-7")
    run(replace(CONFIG, restore_checkpoint="step-7-a1"), paths, store)
    folder = paths.checkpoints / "step-7"
    assert (folder / "state.pt").read_bytes() == b"abc"
    assert (folder / "deep/x").read_bytes() == b"d"
    assert (folder / "COMPLETE").exists()
    assert (paths.checkpoints / "latest").resolve() == folder.resolve()
    assert json.loads(paths.restored_file.read_text()) == {"name": "step-7-a1", "local": "step-7"}


def test_a_damaged_checkpoint_is_never_laid_out_as_complete(store: FolderStore, paths: PodPaths) -> None:
    put_checkpoint(store, "step-7-a1", {"state.pt": b"abc"}, local="step-7")
    store.put_bytes(f"{KEYS.checkpoint('job-1', 'step-7-a1')}/state.pt", b"abX")
    with pytest.raises(StageError, match=r"checkpoint step-7-a1: 'state.pt' does not match its digest") as caught:
        run(replace(CONFIG, restore_checkpoint="step-7-a1"), paths, store)
    assert caught.value.code == ExitCode.CHECKPOINT
    assert not (paths.checkpoints / "step-7/COMPLETE").exists()


def spoil_marker(store: FolderStore, text: bytes) -> None:
    store.put_bytes(KEYS.checkpoint_marker("job-1", "step-7-a1"), text)


FACTS = {"sha256": hashlib.sha256(b"abc").hexdigest(), "size": 3}
PREFIX = KEYS.checkpoint("job-1", "step-7-a1")
DAMAGES = {
    "is not in the store, or was never completed": lambda store: store.delete(f"{PREFIX}/MANIFEST.json"),
    "MANIFEST.json is unreadable": lambda store: spoil_marker(store, b"{"),
    "MANIFEST.json is unreadable ('files')": lambda store: spoil_marker(store, b"{}"),
    "'a' is both a file and a folder": lambda store: spoil_marker(
        store, json.dumps({"files": {"a": FACTS, "a/b": FACTS}}).encode()
    ),
    "state.pt is not in the store": lambda store: store.delete(f"{PREFIX}/state.pt"),
    "'state.pt' does not match its digest": lambda store: store.put_bytes(f"{PREFIX}/state.pt", b"abX"),
    "'state.pt' does not match its digest: expected": lambda store: store.put_bytes(f"{PREFIX}/state.pt", b"ab"),
    "COMPLETE is not in the store": lambda store: store.delete(f"{PREFIX}/COMPLETE"),
}


@pytest.mark.parametrize("reason", DAMAGES)
def test_a_checkpoint_that_cannot_be_used_ends_with_66_and_is_named(
    tmp_path: Path, store: FolderStore, paths: PodPaths, reason: str
) -> None:
    put_checkpoint(store, "step-7-a1", {"state.pt": b"abc", "COMPLETE": b""}, local="step-7")
    DAMAGES[reason](store)
    failure = failed(replace(CONFIG, restore_checkpoint="step-7-a1"), paths, store)
    assert failure.code == ExitCode.CHECKPOINT == 66
    assert str(failure).startswith("checkpoint step-7-a1")
    assert reason in str(failure)
    assert not list((tmp_path / "pod").rglob("COMPLETE"))


def test_a_store_that_is_away_is_no_fault_of_the_checkpoint(store: FolderStore, paths: PodPaths) -> None:
    put_checkpoint(store, "step-7-a1", {"state.pt": b"abc"}, local="step-7")

    class Away(FolderStore):
        def open(self, key: str) -> Any:
            raise StorageError("unreachable", "bucket 'updraft' cannot be reached")

    failure = failed(replace(CONFIG, restore_checkpoint="step-7-a1"), paths, Away(store.root))
    assert (failure.code, str(failure)) == (ExitCode.STORAGE, "bucket 'updraft' cannot be reached")


def test_a_full_disk_is_told_as_such(store: FolderStore, paths: PodPaths) -> None:
    class Full(FolderStore):
        def get_bytes(self, key: str, limit_bytes: int = READ_LIMIT_BYTES) -> bytes | None:
            raise OSError(errno.ENOSPC, "No space left on device", "/updraft/code/train.py")

    failure = failed(replace(CONFIG, code_tree="0" * 64), paths, Full(store.root))
    text = "no space left on the pod's disk while writing /updraft/code/train.py"
    assert (failure.code, str(failure)) == (ExitCode.STORAGE, text)


def test_what_is_staged_is_not_staged_again_by_a_sidecar_that_was_restarted(
    tmp_path: Path, store: FolderStore, paths: PodPaths
) -> None:
    config = replace(CONFIG, code_tree=upload(store, tmp_path / "code", {"train.py": "first"}))
    stage_once(config, paths, store, io.StringIO())
    (paths.code / "train.py").write_text("changed by the program")
    stage_once(config, paths, store, io.StringIO())
    assert (paths.code / "train.py").read_text() == "changed by the program"


@pytest.mark.parametrize("name", ["../../etc", "a/b", "/abs"])
def test_a_marker_cannot_lead_out_of_the_folder(store: FolderStore, paths: PodPaths, name: str) -> None:
    put_checkpoint(store, "bad", {"x": b"1"}, local=name)
    with pytest.raises(StageError, match=r"checkpoint bad: MANIFEST\.json is unreadable"):
        run(replace(CONFIG, restore_checkpoint="bad"), paths, store)


def test_results_of_all_learners_are_merged_the_lowest_first(store: FolderStore, paths: PodPaths) -> None:
    for learner, name, data in [
        (10, "model.pt", b"ten"),
        (2, "model.pt", b"two"),
        (1, "model.pt", b"one"),
        (2, "own/two.txt", b"2"),
        (10, "own", b"a file where learner 2 has a folder"),
    ]:
        store.put_bytes(f"{KEYS.results('job-1', 'train', learner)}/{name}", data)
    store.put_bytes(f"{KEYS.results('job-1', 'evaluate', 1)}/report.json", b"{}")
    run(replace(CONFIG, restore_results=True), paths, store)
    found = {path.relative_to(paths.result).as_posix(): path.read_bytes() for path in paths.result.rglob("*.*")}
    assert found == {"model.pt": b"one", "own/two.txt": b"2"}


def test_a_later_attempt_finds_its_own_results(store: FolderStore, paths: PodPaths) -> None:
    own, other = KEYS.results("job-1", "train", 2), KEYS.results("job-1", "train", 1)
    objects = {"history.csv": b"1,2", "deep/er/x": b"x", "was-a-file/now": b"n"}
    for name, data in objects.items():
        store.put_bytes(f"{own}/{name}", data)
    store.put_bytes(f"{other}/model.pt", b"theirs")
    listed = store.list

    def with_the_old_file(prefix: str) -> Any:  # a folder cannot hold both, S3 can
        yield from [*listed(prefix), StoredObject(f"{own}/was-a-file", 3)]

    store.list = with_the_old_file  # type: ignore[method-assign]
    run(replace(CONFIG, learner=2, learners=2, restore_own_results=True), paths, store)
    found = {
        path.relative_to(paths.result).as_posix(): path.read_bytes()
        for path in paths.result.rglob("*")
        if path.is_file()
    }
    assert found == objects
    laid = json.loads(paths.restored_results_file.read_text())
    assert {name: size for name, (size, _) in laid.items()} == {name: len(data) for name, data in objects.items()}
    assert (paths.result / "deep/er").stat().st_mode & 0o7777 == 0o2775


def test_a_later_attempt_can_save_its_mlflow_model(store: FolderStore, paths: PodPaths) -> None:
    """MLflow refuses a folder that is not empty."""
    own = KEYS.results("job-1", "train", 1)
    for name in ("model/MLmodel", "model/data/model.pth", "history.csv", "models/MLmodel"):
        store.put_bytes(f"{own}/{name}", b"old")
    run(replace(CONFIG, attempt=2, restore_own_results=True), paths, store)
    assert not (paths.result / "model").exists()
    assert (paths.result / "history.csv").read_bytes() == (paths.result / "models/MLmodel").read_bytes() == b"old"
    (paths.result / "model").mkdir()
    (paths.result / "model" / "MLmodel").write_bytes(b"new")
    baseline = json.loads(paths.restored_results_file.read_text())
    state = paths.private / "result.json"
    Mirror(paths.root, "result", store, own, state, Warnings(), baseline, owned=True).poll(final=True)
    kept = {item.key.removeprefix(f"{own}/"): store.get_bytes(item.key) for item in store.list(f"{own}/")}
    assert kept == {"model/MLmodel": b"new", "history.csv": b"old", "models/MLmodel": b"old"}


def test_missing_pieces_are_named(tmp_path: Path, store: FolderStore, paths: PodPaths) -> None:
    with pytest.raises(StageError, match="code: tree 000000000000 is not in the store"):
        run(replace(CONFIG, code_tree="0" * 64), paths, store)
    code = upload(store, tmp_path / "code", {"train.py": "x"})
    store.delete(KEYS.blob(hashlib.sha256(b"x").hexdigest()))
    with pytest.raises(StageError, match=r"code: train\.py is not in the store") as caught:
        run(replace(CONFIG, code_tree=code), paths, store)
    assert caught.value.code == ExitCode.DATA


def test_a_forged_tree_document_is_refused(store: FolderStore, paths: PodPaths) -> None:
    store.put_bytes(KEYS.tree("0" * 64), b'{"files": []}')
    with pytest.raises(StageError, match="does not match its digest"):
        run(replace(CONFIG, code_tree="0" * 64), paths, store)


def environment(tmp_path: Path, config: str, credentials: str) -> dict[str, str]:
    (tmp_path / "credentials.json").write_text(credentials)
    return {
        "UPDRAFT_POD_CONFIG": config,
        "UPDRAFT_ROOT_DIR": str(tmp_path / "pod"),
        "UPDRAFT_CREDENTIALS_FILE": str(tmp_path / "credentials.json"),
    }


CREDENTIALS = json.dumps(
    {
        "s3": {"endpoint": "http://127.0.0.1:9", "access_key": "a", "secret_key": "hush"},
        "mlflow": {"uri": "http://m"},
        "endpoint_token": "hush-token",
    }
)


def test_credentials_do_not_show_their_secrets(tmp_path: Path) -> None:
    env = environment(tmp_path, "{}", CREDENTIALS)
    assert "hush" not in repr(read_credentials(env))
    with pytest.raises(PodError, match="cannot be read: No such file"):
        read_credentials({"UPDRAFT_CREDENTIALS_FILE": str(tmp_path / "nowhere")})


def test_another_jobs_checkpoint_lies_beside_the_programs_own(store: FolderStore, paths: PodPaths) -> None:
    put_checkpoint(store, "step-7-a1", {"state.pt": b"abc", "deep/x": b"d", "COMPLETE": b""}, local="step-7")
    run(replace(CONFIG, job_id="job-2", init_job="job-1", init_checkpoint="step-7-a1"), paths, store)
    folder = paths.at(contract.INIT_DIR)
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        "state.pt",
        "deep/x",
    }
    assert (folder / "state.pt").read_bytes() == b"abc"
    assert list(paths.checkpoints.iterdir()) == []
    assert not paths.restored_file.exists()


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_another_jobs_checkpoint_that_cannot_be_used_ends_the_job(
    store: FolderStore, paths: PodPaths, damage: str
) -> None:
    """An older checkpoint of the job's own would not help, as after ExitCode.CHECKPOINT."""
    if damage == "changed":
        put_checkpoint(store, "step-7-a1", {"state.pt": b"abc"}, local="step-7")
        store.put_bytes(f"{KEYS.checkpoint('job-1', 'step-7-a1')}/state.pt", b"abX")
    with pytest.raises(StageError, match=r"init_from: job job-1: .*(not in the store|does not match)") as caught:
        run(replace(CONFIG, job_id="job-2", init_job="job-1", init_checkpoint="step-7-a1"), paths, store)
    assert caught.value.code == ExitCode.DATA
