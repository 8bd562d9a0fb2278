"""Staging and the sidecar stay in the job's volume, whatever links a program or its image has planted there.

The sidecar's own state lies where the program cannot reach it by itself: here in the folder `own`.
"""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from folder_store import FolderStore
from learner.stage_fakes import CONFIG, KEYS, put_checkpoint, upload

from updraft_learner import contract
from updraft_learner.contract import DataMount, ExitCode
from updraft_learner.pod import PodPaths
from updraft_learner.record.files import find_below
from updraft_learner.record.report import Warnings
from updraft_learner.sidecar.checkpoints import CheckpointUploader
from updraft_learner.sidecar.signals import SignalReader
from updraft_learner.stage import let_program_start, stage_once, tell_failure
from updraft_learner.trees import DigestMismatch, Tree, TreeFile, materialise

OWN = '{"m-1": "artifacts/of/this/job"}'


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "s3")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The sidecar's state, as an earlier process left it."""
    folder = tmp_path / "own"
    (folder / "step-7").mkdir(parents=True)
    for name in ("models.json", "params.json", "step-7/models.json", "stop", "dump"):
        (folder / name).write_text(OWN)
    folder.chmod(0o700)
    return folder


@pytest.fixture
def paths(tmp_path: Path, own: Path) -> PodPaths:
    (tmp_path / "pod").mkdir()
    return PodPaths(tmp_path / "pod", own)


def untouched(own: Path) -> None:
    ours = {"models.json", "params.json", "step-7", "stop", "dump"}
    staging = {"staged", "restored.json", "restored-results.json"}
    assert ours <= {*os.listdir(own)} <= ours | staging
    for name in ours - {"step-7"}:
        assert (own / name).read_text() == OWN
    assert {path.name: path.read_text() for path in (own / "step-7").iterdir()} == {"models.json": OWN}
    assert own.stat().st_mode & 0o777 == 0o700


def plant(paths: PodPaths, relative: str, target: Path) -> None:
    link = paths.root / relative
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_dir():
        link.rmdir()
    link.symlink_to(target)


@pytest.mark.parametrize(
    "link",
    ["code", "data", "data/a", "data/a/deep", "result", "result/deep", "checkpoints", "checkpoints/step-7", "io"],
)
def test_a_folder_that_is_a_link_is_replaced_when_a_pod_is_staged(
    tmp_path: Path, store: FolderStore, paths: PodPaths, own: Path, link: str
) -> None:
    plant(paths, link, own)
    code = upload(store, tmp_path / "code", {"models.json": "evil", "deep/models.json": "evil"})
    put_checkpoint(store, "step-7-a1", {"models.json": b"evil", "COMPLETE": b""}, local="step-7")
    for name in ("models.json", "deep/models.json"):
        store.put_bytes(f"{KEYS.results('job-1', 'train', 1)}/{name}", b"evil")
    config = replace(
        CONFIG,
        code_tree=code,
        data=(DataMount(code, "a"),),
        restore_checkpoint="step-7-a1",
        restore_own_results=True,
        params={"evil": 1},
    )
    stage_once(config, paths, store, io.StringIO())
    let_program_start(paths)
    untouched(own)
    assert not (paths.root / link).is_symlink()
    for laid in ("code", "code/deep", "data/a", "data/a/deep", "result", "result/deep", "checkpoints/step-7"):
        assert (paths.root / laid / "models.json").read_text() == "evil"
        assert (paths.root / laid).stat().st_mode & 0o7777 == 0o2775
    assert (paths.checkpoints / "latest").resolve() == paths.checkpoints / "step-7"
    assert paths.at(contract.STAGED_FILE).exists()


@pytest.mark.parametrize("name", ["code/models.json", "result/models.json", "checkpoints/step-7/COMPLETE"])
@pytest.mark.parametrize("target", ["models.json", "new.json"])
def test_a_file_that_is_a_link_is_replaced_when_a_pod_is_staged(
    tmp_path: Path, store: FolderStore, paths: PodPaths, own: Path, name: str, target: str
) -> None:
    plant(paths, name, own / target)
    code = upload(store, tmp_path / "code", {"models.json": OWN})
    put_checkpoint(store, "step-7-a1", {"w": b"evil"}, local="step-7")
    store.put_bytes(f"{KEYS.results('job-1', 'train', 1)}/models.json", b"evil")
    config = replace(CONFIG, code_tree=code, restore_checkpoint="step-7-a1", restore_own_results=True)
    stage_once(config, paths, store, io.StringIO())
    untouched(own)
    assert not (paths.root / name).is_symlink()


@pytest.mark.parametrize("name", ["params.json", "staged", "staged-failed"])
def test_a_file_for_the_program_that_is_a_link_is_replaced(
    store: FolderStore, paths: PodPaths, own: Path, name: str
) -> None:
    plant(paths, f"io/{name}", own / "models.json")
    plant(paths, "io/staging-failed", own / "params.json")
    stage_once(CONFIG, paths, store, io.StringIO())
    let_program_start(paths)
    tell_failure(paths, ExitCode.DATA, "no data")
    untouched(own)
    assert paths.at(contract.STAGING_FAILED_FILE).read_text() == f"{int(ExitCode.DATA)} no data\n"
    assert json.loads(paths.at(contract.PARAMS_FILE).read_text()) == CONFIG.params


def test_a_claim_that_the_local_node_has_linked_stays(tmp_path: Path, store: FolderStore, paths: PodPaths) -> None:
    claim = tmp_path / "claim"
    claim.mkdir(mode=0o755)
    plant(paths, "data", claim)
    stage_once(CONFIG, paths, store, io.StringIO())
    assert paths.data.resolve() == claim
    assert (os.listdir(claim), claim.stat().st_mode & 0o7777) == ([], 0o755)


def test_requests_to_the_program_do_not_leave_its_folder(store: FolderStore, paths: PodPaths, own: Path) -> None:
    plant(paths, "io", own)
    (own / "stop").unlink()
    reader = SignalReader(CONFIG, paths, store)
    with pytest.raises(OSError, match="Not a directory"):
        reader.stop("a stop was requested")
    store.put_bytes(KEYS.dump("job-1", "train", 2, 1), b"7")
    with pytest.raises(OSError, match="Not a directory"):
        reader.poll()
    assert not (own / "stop").exists()
    assert (own / "dump").read_text() == OWN


def finished(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "w").write_bytes(b"weights")
    (folder / "COMPLETE").touch()


def test_checkpoints_below_a_link_are_neither_listed_nor_stored_nor_removed(
    store: FolderStore, paths: PodPaths, own: Path
) -> None:
    for step in range(5):
        finished(own / f"step-{step}")
    plant(paths, "checkpoints", own)
    (paths.root / "io").mkdir()
    uploader = CheckpointUploader(CONFIG, paths, store, Warnings())
    uploader.poll()
    assert uploader.unfinished() == []
    assert [item.key for item in store.list("")] == []
    assert not (own / "latest").is_symlink()
    assert find_below(paths.root, "checkpoints/step-1") == ({}, [])


def test_removing_old_checkpoints_does_not_follow_a_link(store: FolderStore, paths: PodPaths, own: Path) -> None:
    """The folder of checkpoints is exchanged for a link after they were stored, with equal files behind it."""
    (paths.root / "io").mkdir()
    names = [f"step-{step}" for step in range(5)]
    for name in names:
        finished(paths.checkpoints / name)
    uploader = CheckpointUploader(CONFIG, paths, store, Warnings())
    paths.checkpoints.rename(own / "moved")  # the same inodes: each counts as stored
    plant(paths, "checkpoints", own / "moved")
    uploader.poll()
    assert sorted(os.listdir(own / "moved")) == names


def test_the_folder_of_a_tree_that_is_a_link_is_replaced_below_its_anchor(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "outside")
    tree = Tree((TreeFile("a", "a" * 64, 1),))
    with pytest.raises(DigestMismatch):
        materialise(tree, tmp_path / "root", lambda _: io.BytesIO(b"x"), anchor=tmp_path)
    assert list((tmp_path / "outside").iterdir()) == []
    assert list((tmp_path / "root").iterdir()) == []
