"""Results that the sidecar also writes to a bucket of the user's, when the program has ended."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from folder_store import FolderStore
from learner.sidecar_fakes import CONFIG, TOKEN, FailingStore, FakeMlflow, make_paths

from updraft_learner.contract import Keys, PodConfig, ResultsBucket
from updraft_learner.sidecar.app import Sidecar

TARGET = ResultsBucket("theirs", "models/job-1", "mine", "s3://theirs/models/")
SETUP = replace(CONFIG, results_to=TARGET)


def drained(tmp_path: Path, mlflow: FakeMlflow, store: FolderStore, config: PodConfig = SETUP) -> Sidecar:
    paths = make_paths(tmp_path / f"pod-{config.learner}")
    ours = FolderStore(tmp_path / "ours")
    sidecar = Sidecar(config, paths, ours, mlflow.client(), TOKEN, results_store=store, sleep=lambda _: None)
    sidecar.start()
    (paths.result / "deep").mkdir()
    (paths.result / "deep" / "model.bin").write_bytes(b"weights")
    (paths.result / "link").symlink_to("/etc/passwd")
    sidecar.drain(0.1)
    return sidecar


def test_results_are_in_both_places(tmp_path: Path, mlflow: FakeMlflow) -> None:
    theirs = FolderStore(tmp_path / "theirs")
    drained(tmp_path, mlflow, theirs)
    drained(tmp_path, mlflow, theirs, replace(SETUP, learner=2, learners=2))
    ours = FolderStore(tmp_path / "ours")
    assert ours.get_bytes(f"{Keys('t').results('job-1', 'train', 1)}/deep/model.bin") == b"weights"
    assert [item.key for item in theirs.list("")] == [
        "models/job-1/deep/model.bin",
        "models/job-1/learner-2/deep/model.bin",
    ]


def test_a_bucket_that_refuses_is_a_warning_and_the_job_ends(tmp_path: Path, mlflow: FakeMlflow) -> None:
    theirs = FailingStore(tmp_path / "theirs")
    theirs.fails = lambda operation, key: operation == "put"
    sidecar = drained(tmp_path, mlflow, theirs)
    (text,) = [text for text in sidecar.warnings.texts() if "results were not written" in text]
    assert "s3://theirs/models/ with secret 'mine'" in text
    assert "`updraft download` has them" in text
    done = json.loads(FolderStore(tmp_path / "ours").get_bytes(Keys("t").done("job-1", "train", 1, 1)) or b"")
    assert text in done["warnings"]


def test_an_older_attempt_writes_nothing(tmp_path: Path, mlflow: FakeMlflow) -> None:
    ours, theirs = FolderStore(tmp_path / "ours"), FolderStore(tmp_path / "theirs")
    ours.put_bytes(Keys("t").fence("job-1"), json.dumps({"train": 2}).encode())
    drained(tmp_path, mlflow, theirs)
    assert list(theirs.list("")) == []


@pytest.mark.parametrize("target", [None, TARGET])
def test_the_configuration_survives_its_text(target: ResultsBucket | None) -> None:
    config = replace(CONFIG, results_to=target)
    assert PodConfig.from_json(config.to_json()) == config
