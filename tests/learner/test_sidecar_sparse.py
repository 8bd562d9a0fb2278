"""A file that is mostly holes costs a program nothing and the object store everything: it is not stored."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from learner.sidecar_fakes import CONFIG, FailingStore, make_paths

from updraft_learner.pod import PodPaths
from updraft_learner.record.files import _too_hollow, find_below
from updraft_learner.record.report import Warnings
from updraft_learner.sidecar.checkpoints import CheckpointUploader
from updraft_learner.sidecar.mirror import Mirror

MIB = 1 << 20
ROOM_BYTES = 8 * MIB


@pytest.fixture
def paths(tmp_path: Path) -> PodPaths:
    return make_paths(tmp_path / "pod")


@pytest.fixture
def store(tmp_path: Path) -> FailingStore:
    return FailingStore(tmp_path / "s3")


def hole(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


def mirror(paths: PodPaths, store: Any, warnings: Warnings) -> Mirror:
    state_file = paths.private / "result.json"
    return Mirror(paths.root, "result", store, "t/result", state_file, warnings, hollow_bytes=ROOM_BYTES)


def uploader(paths: PodPaths, store: Any) -> CheckpointUploader:
    return CheckpointUploader(CONFIG, paths, store, Warnings(), hollow_bytes=ROOM_BYTES)


def names(store: FailingStore) -> list[str]:
    return [item.key.removeprefix("t/result/") for item in store.list("t/result/")]


def test_ten_terabytes_of_nothing_are_not_stored_and_what_lies_beside_them_is(
    paths: PodPaths, store: FailingStore
) -> None:
    folder, warnings = paths.root / "result", Warnings()
    hole(folder / "a", 2 << 30)
    (folder / "model").write_bytes(b"real")
    (folder / "zeros").write_bytes(bytes(2 * ROOM_BYTES))
    (folder / "link").symlink_to("a")
    results = mirror(paths, store, warnings)
    results.poll()
    assert results.pending_bytes == 4 + 2 * ROOM_BYTES
    results.poll(final=True)
    assert names(store) == ["model", "zeros"]
    (text,) = warnings.texts()
    assert text.startswith("result/a is mostly a hole (a sparse file)")
    assert text.endswith("it is not stored")


def test_small_holes_are_stored_up_to_a_sum(paths: PodPaths, store: FailingStore) -> None:
    folder = paths.root / "result"
    for number in range(20):
        hole(folder / f"{number:02d}", MIB)
    hole(folder / "sub" / "database", 2 * MIB)
    found, _ = find_below(paths.root, "result", ROOM_BYTES)
    assert sorted(path for path, file in found.items() if file.refused) == [
        *(f"{number:02d}" for number in range(8, 20)),
        "sub/database",
    ]
    for number in range(7, 20):
        (folder / f"{number:02d}").unlink()
    (folder / "sub" / "database").unlink()
    found, _ = find_below(paths.root, "result", ROOM_BYTES)
    assert not any(file.refused for file in found.values())


def test_links_take_up_no_more_than_what_they_name(paths: PodPaths, store: FailingStore) -> None:
    """An honest `latest` is stored, however large; ten thousand of them would fill the store."""
    folder, warnings = paths.root / "result", Warnings()
    (folder / "step-9").write_bytes(os.urandom(2 * ROOM_BYTES))
    (folder / "latest").symlink_to("step-9")
    hole(folder / "empty", MIB)
    hole(folder / "refused", 2 << 30)  # makes no room
    for number in range(40):
        (folder / f"soft-{number:02d}").symlink_to("empty")
        (folder / f"hard-{number:02d}").hardlink_to(folder / "step-9")
    results = mirror(paths, store, warnings)
    results.poll(final=True)
    stored = names(store)
    assert {"step-9", "empty"} - {*stored} <= {"step-9"}  # or another name of it
    assert sum(item.size for item in store.list("t/result/")) <= 2 * (2 * ROOM_BYTES + MIB) + ROOM_BYTES
    assert any("is a link, and all links here take up more than twice the room" in text for text in warnings.texts())
    for number in range(40):
        (folder / f"soft-{number:02d}").unlink()
        (folder / f"hard-{number:02d}").unlink()
    mirror(paths, store, warnings).poll(final=True)
    assert {"step-9", "latest", "empty"} <= {*names(store)}


def test_a_file_whose_blocks_are_told_late_has_no_hole(paths: PodPaths) -> None:
    (paths.root / "result" / "real").write_bytes(os.urandom(MIB))
    assert _too_hollow(paths.root, "result", {"real": 2 * ROOM_BYTES}, ROOM_BYTES) == []
    assert _too_hollow(paths.root, "result", {"gone": 2 * ROOM_BYTES}, ROOM_BYTES) == []


def test_a_checkpoint_with_such_a_file_is_damaged(paths: PodPaths, store: FailingStore) -> None:
    for name, size in (("step-1", MIB), ("step-2", 2 << 30)):
        hole(paths.checkpoints / name / "w", size)
        (paths.checkpoints / name / "COMPLETE").touch()
    watched = uploader(paths, store)
    watched.poll()
    assert watched.final == "step-1-a1"
    (reason,) = watched.quarantined
    assert reason.startswith("checkpoint step-2: file w is mostly a hole (a sparse file)")
    assert reason.endswith("write one without such files; set aside as .bad-step-2")
    assert not any("step-2" in item.key for item in store.list(""))


class Growing(FailingStore):
    """The program makes a file longer while it is sent."""

    grow: Path

    def put_file(self, key: str, source: Path | Callable[[], BinaryIO]) -> None:
        if key.endswith("/w"):
            os.truncate(self.grow, 2 << 30)
        super().put_file(key, source)


def test_what_grows_while_it_is_sent_is_sent_as_far_as_it_was_found(paths: PodPaths, tmp_path: Path) -> None:
    store = Growing(tmp_path / "s3")
    store.grow = paths.root / "result" / "w"
    store.grow.write_bytes(b"real")
    mirror(paths, store, Warnings()).poll(final=True)
    assert store.get_bytes("t/result/w") == b"real"

    store.grow = paths.checkpoints / "step-1" / "w"
    store.grow.parent.mkdir()
    store.grow.write_bytes(b"real")
    (paths.checkpoints / "step-1" / "COMPLETE").touch()
    watched = uploader(paths, store)
    watched.poll()
    assert store.get_bytes("t/jobs/job-1/checkpoints/step-1-a1/w") == b"real"
    assert watched.final is None
    assert max(item.size for item in store.list("")) < 1000
