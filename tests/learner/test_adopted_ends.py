"""What was adopted is stored, and put back where the program wrote it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from folder_store import FolderStore
from learner.adopted_fakes import GLOB, Watch, content, write
from learner.sidecar_fakes import TOKEN, FakeMlflow, make_paths

from updraft_learner.adopted import restore_adopted
from updraft_learner.contract import Keys, LearnerDone
from updraft_learner.sidecar.adopted import QUIET_SECONDS
from updraft_learner.sidecar.app import Sidecar
from updraft_learner.sidecar.checkpoints import CheckpointUploader
from updraft_learner.stage import stage
from updraft_learner.trees import TreeError


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(make_paths(tmp_path / "pod"))


def test_it_is_stored_and_the_next_attempt_finds_it_where_the_program_wrote_it(watch: Watch, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "s3")
    write(watch.paths, "output/checkpoint-500", {"model.bin": "m", "rng/0.pth": "r"})
    watch.quiet()
    CheckpointUploader(GLOB, watch.paths, store, watch.warnings).poll()
    marker = json.loads(store.get_bytes(Keys("t").checkpoint_marker("job-1", "step-0000000500-a1")) or b"")
    assert marker["step"] == 500
    paths = make_paths(tmp_path / "next")
    write(paths, "output/checkpoint-500", {"stale": "shipped with the code"})
    config = replace(GLOB, attempt=2, restore_checkpoint="step-0000000500-a1")
    stage(config, paths, store)
    assert content(paths.code / "output") == {"checkpoint-500/model.bin": "m", "checkpoint-500/rng/0.pth": "r"}
    assert (paths.io / "resume-from").read_text() == "output/checkpoint-500\n"
    resumed = Watch(paths, config)
    resumed.quiet()
    uploader = CheckpointUploader(config, paths, store, resumed.warnings)
    uploader.poll()
    assert uploader.stored() == []  # what was restored is not stored again


def test_what_was_quiet_at_the_programs_end_is_stored_before_the_sidecar_is_done(tmp_path: Path) -> None:
    mlflow, store, seconds = FakeMlflow(), FolderStore(tmp_path / "s3"), [0.0]
    paths = make_paths(tmp_path / "pod")
    sidecar = Sidecar(GLOB, paths, store, mlflow.client(), TOKEN, clock=lambda: seconds[0])
    try:
        write(paths, "output/checkpoint-7", {"a": "whole"})
        sidecar.adopter.poll()
        sidecar.start()
        seconds[0] = QUIET_SECONDS
        write(paths, "output/checkpoint-8", {"a": "ha"})
        sidecar.drain()
    finally:
        mlflow.close()
    done = LearnerDone.from_json(store.get_bytes(Keys("t").done("job-1", "train", 1, 1)) or b"")
    assert done.final_checkpoint == "step-0000000007-a1"
    assert any(text.startswith("output/checkpoint-8 is not adopted") for text in done.warnings)


def test_a_checkpoint_that_was_not_adopted_is_left_as_it_is(tmp_path: Path) -> None:
    paths = make_paths(tmp_path / "pod")
    (paths.checkpoints / "step-1").mkdir()
    restore_adopted(paths, "checkpoints/step-1")
    assert not (paths.io / "resume-from").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"path": "../x"}', '{"path": "/etc"}', '{"path": "a\\nb"}'])
def test_a_planted_description_leads_nowhere(tmp_path: Path, text: str) -> None:
    paths = make_paths(tmp_path / "pod")
    (paths.checkpoints / "step-1").mkdir()
    (paths.checkpoints / "step-1/adopted.json").write_text(text)
    with pytest.raises(TreeError):
        restore_adopted(paths, "checkpoints/step-1")
