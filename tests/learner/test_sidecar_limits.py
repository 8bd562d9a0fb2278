"""What a program may make its sidecar write for others to read: bounded, whatever it names its files and metrics."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learner.sidecar_fakes import CONFIG, FailingStore, make_paths

from updraft_learner import contract
from updraft_learner.checkpoint_format import manifest_name
from updraft_learner.contract import Keys, LearnerStatus, StoredCheckpoint
from updraft_learner.pod import PodPaths
from updraft_learner.record.journal import Journal
from updraft_learner.record.report import Warnings
from updraft_learner.sidecar.checkpoints import CheckpointUploader
from updraft_learner.sidecar.recorder import KNOWN_NAMES, Recorder

KEYS = Keys("t")
WIDE = "\U0001f600"  # a character that takes twelve bytes in JSON


@pytest.fixture
def paths(tmp_path: Path) -> PodPaths:
    return make_paths(tmp_path / "pod")


@pytest.fixture
def store(tmp_path: Path) -> FailingStore:
    return FailingStore(tmp_path / "s3")


def save(paths: PodPaths, name: str, described: Any) -> None:
    folder = paths.checkpoints / name
    folder.mkdir(parents=True)
    (folder / "w").write_bytes(b"1")
    (folder / "checkpoint.json").write_text(described if isinstance(described, str) else json.dumps(described))
    (folder / "COMPLETE").touch()


def stored(store: FailingStore) -> list[str]:
    return [item.key for item in store.list("")]


def test_the_longest_words_of_a_program_leave_a_status_that_is_read(tmp_path: Path) -> None:
    warnings = Warnings()
    for number in range(3 * contract.TEXTS):
        warnings.add(f"{number}{WIDE * 1000}", f"{number}{WIDE * 1000}")
    recorder = Recorder(Journal(tmp_path), warnings)
    for number in range(KNOWN_NAMES):
        recorder.record(recorder.metrics_entries(1.0, number, {f"{number:04d}{WIDE * 240}": 0.1}, "file"))
    bad = tuple(f"{WIDE * contract.TEXT_CHARACTERS}" for _ in range(contract.TEXTS))
    shown = tuple(StoredCheckpoint("\udcff" * 300, 1, 1, True) for _ in range(50))
    status = LearnerStatus(
        1.0,
        "running",
        last_metrics=recorder.last_metrics(),
        quarantined=bad,
        warnings=warnings.texts(),
        checkpoints=shown,
    )
    assert len(warnings.texts()) == contract.TEXTS
    assert {len(text) for text in warnings.texts()} == {contract.TEXT_CHARACTERS}
    assert next(iter(status.last_metrics)).startswith("0000")
    assert contract.STATUS_LIMIT_BYTES // 2 < len(status.to_json().encode()) <= contract.STATUS_LIMIT_BYTES


def test_a_warning_is_cleared_by_the_topic_that_it_was_added_with() -> None:
    warnings = Warnings()
    warnings.add("x" * 1000, "a text")
    warnings.clear("x" * 1000)
    assert warnings.texts() == ()


def test_a_name_of_thirty_megabytes_comes_no_further_than_the_sidecar(paths: PodPaths, store: FailingStore) -> None:
    name = "A" * (contract.MARKER_LIMIT_BYTES - 1000)
    save(paths, "step-1", {"step": 1, "files": {name: {"sha256": "0", "size": 1}}})
    save(paths, "step-2", {"step": 1, "files": {name * 2: {"sha256": "0", "size": 1}}})
    warnings = Warnings()
    watched = CheckpointUploader(CONFIG, paths, store, warnings)
    watched.poll()
    assert stored(store) == []
    assert all("is missing; set aside as" in text or "unreadable" in text for text in watched.quarantined)
    assert len(watched.quarantined) == 2
    assert sum(map(len, [*watched.quarantined, *warnings.texts()])) < 2000


def test_only_the_newest_reasons_of_quarantined_checkpoints_are_kept(paths: PodPaths, store: FailingStore) -> None:
    for number in range(contract.TEXTS + 5):
        save(paths, f"step-{number}", "{")
    watched = CheckpointUploader(CONFIG, paths, store, Warnings())
    watched.poll()
    assert len(watched.quarantined) == contract.TEXTS
    assert not list(paths.checkpoints.glob("step-*"))


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({f"m{number}": 1.0 for number in range(1001)}, "checkpoint.json has 1001 metrics; the limit is 1000"),
        ({"m" * 251: 1.0}, "a metric's name in checkpoint.json is longer than 250 characters"),
        ({f"{number:0250d}": 1.0 for number in range(500)}, "have together more than 100000 characters"),
    ],
)
def test_a_checkpoint_with_too_much_to_say_is_not_stored(
    paths: PodPaths, store: FailingStore, metrics: dict[str, float], reason: str
) -> None:
    save(paths, "step-1", {"step": 1, "files": {}, "metrics": metrics})
    save(paths, "step-2", {"step": 2, "files": {}, "metrics": {"loss": 0.5}})
    warnings = Warnings()
    watched = CheckpointUploader(CONFIG, paths, store, warnings)
    watched.poll()
    assert watched.final == "step-2-a1"
    assert not any("step-1" in key for key in stored(store))
    (text,) = warnings.texts()
    assert text.startswith("checkpoint step-1 is not stored: ")
    assert reason in text


@pytest.mark.parametrize(
    "spoil", ["[" * 100_000, '{"files": {}, "step": 1e999}', '{"files": {}, "step": 1' + "0" * 30 + "}"]
)
def test_a_manifest_that_breaks_its_reader_is_damaged_and_holds_up_no_other(
    paths: PodPaths, store: FailingStore, spoil: str
) -> None:
    save(paths, "step-1", {"step": 1, "files": {}})
    save(paths, "step-2", spoil)
    watched = CheckpointUploader(CONFIG, paths, store, Warnings())
    watched.poll()
    assert (watched.final, len(watched.quarantined)) == ("step-1-a1", 1)


def test_a_checkpoint_whose_files_cannot_be_listed_or_restored_is_not_stored(
    paths: PodPaths, store: FailingStore
) -> None:
    save(paths, "step-1", {"step": 1, "files": {}})
    (paths.checkpoints / "step-1" / "back\\slash").touch()
    save(paths, "step-2", {"step": 2, "files": {}})
    deep = paths.checkpoints / "step-2"
    for _ in range(6):
        deep = deep / ("d" * 200)
    deep.mkdir(parents=True)
    (deep / "w").touch()
    warnings = Warnings()
    CheckpointUploader(CONFIG, paths, store, warnings).poll()
    assert stored(store) == []
    said = " ".join(warnings.texts())
    assert "is refused: it holds a NUL or a backslash" in said
    assert "is longer than 1000 characters" in said


def test_a_part_with_more_files_than_its_share_of_the_manifest_names_is_not_stored(
    paths: PodPaths, store: FailingStore
) -> None:
    """Of a thousand parts each may describe some 16 KiB."""
    folder = paths.checkpoints / "step-1"
    folder.mkdir(parents=True)
    for number in range(80):
        (folder / f"shard-{number}").touch()
    (folder / manifest_name(1, 1000)).write_text(json.dumps({"step": 1, "files": {}, "save": "5afe5afe"}))
    (folder / "COMPLETE").touch()
    warnings = Warnings()
    CheckpointUploader(replace(CONFIG, learners=1000), paths, store, warnings).poll()
    assert stored(store) == []
    (text,) = warnings.texts()
    assert "the list of its files and metrics is larger than 16777 bytes; save fewer of them" in text


@pytest.mark.parametrize("name", ["MANIFEST.json", "QUARANTINED.json", "PART-0001-of-0001.json"])
def test_a_checkpoint_with_a_file_of_the_platforms_name_is_not_stored(
    paths: PodPaths, store: FailingStore, name: str
) -> None:
    """What a program writes there would be read as the platform's own words."""
    folder = paths.checkpoints / "step-1"
    folder.mkdir()
    (folder / name).write_text("[" * 100_000)
    (folder / "COMPLETE").touch()
    warnings = Warnings()
    CheckpointUploader(CONFIG, paths, store, warnings).poll()
    assert stored(store) == []
    (text,) = warnings.texts()
    assert f"file {name} has a name that the platform writes itself" in text
