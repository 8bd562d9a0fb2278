"""Checkpoints on their way into a store that is slow, fails or lies: complete there, or not there at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from folder_store import FolderStore
from hypothesis import given, settings
from hypothesis import strategies as st
from learner.sidecar_fakes import CONFIG, FailingStore, make_paths

from updraft_learner import Checkpointer
from updraft_learner import checkpoint_format as fmt
from updraft_learner.checkpoint_names import (
    STORED_FILE,
    CheckpointName,
    is_bookkeeping,
    parse_name,
    part_name,
    recordable,
    stored_name,
)
from updraft_learner.checkpoint_store import PartsDisagree, join_parts, merge, to_json
from updraft_learner.contract import Keys
from updraft_learner.pod import PodPaths
from updraft_learner.record.report import Warnings
from updraft_learner.sidecar.checkpoints import CheckpointUploader
from updraft_learner.store import StorageError

KEYS = Keys("t")
SAVE = "5afe5afe5afe5afe"


@pytest.fixture
def store(tmp_path: Path) -> FailingStore:
    return FailingStore(tmp_path / "s3")


@pytest.fixture
def paths(tmp_path: Path) -> PodPaths:
    return make_paths(tmp_path / "pod-1")


def watch(paths: PodPaths, store: FolderStore, learner: int = 1, learners: int = 1) -> CheckpointUploader:
    return CheckpointUploader(replace(CONFIG, learner=learner, learners=learners), paths, store, Warnings())


def write(
    paths: PodPaths, step: int, files: dict[str, bytes], *, part: int = 1, parts: int = 1, save: str = SAVE
) -> Path:
    """A checkpoint as the Python API writes it."""
    temporary, path = paths.checkpoints / f".tmp-{step}", paths.checkpoints / f"step-{step}"
    for name, data in files.items():
        (temporary / name).parent.mkdir(parents=True, exist_ok=True)
        (temporary / name).write_bytes(data)
    facts = fmt.hash_folder(temporary)
    fmt.publish(temporary, fmt.Checkpoint(path, step, {}, facts, created=fmt.now(), part=part, parts=parts, save=save))
    return path


def stored(store: FolderStore, name: str) -> dict[str, Any] | None:
    text = store.get_bytes(KEYS.checkpoint_marker("job-1", name))
    return None if text is None else dict(json.loads(text))


def is_sound(store: FolderStore, name: str) -> bool:
    """Whether what the manifest says is what lies in the store."""
    manifest = stored(store, name)
    assert manifest is not None
    return all(
        hashlib.sha256(store.get_bytes(f"{KEYS.checkpoint('job-1', name)}/{path}") or b"").hexdigest()
        == facts["sha256"]
        for path, facts in manifest["files"].items()
    )


# --- names ---


@given(st.text(min_size=1, max_size=30), st.integers(1, 99), st.integers(1, 99), st.integers(1, 12))
def test_a_name_says_whose_checkpoint_it_is(local: str, attempt: int, learner: int, version: int) -> None:
    assert parse_name(stored_name(local, attempt, learner, version=version)) == CheckpointName(local, attempt, learner)
    assert parse_name(stored_name(local, attempt, learner, save=SAVE)) == CheckpointName(local, attempt, 1, True)


def test_other_names_say_nothing() -> None:
    assert parse_name("step-7") is None
    assert parse_name("step-7-a1-x") is None
    assert [recordable(name) for name in ("step-1-a1", "a\nb", "", "x" * 251)] == [True, False, False, False]
    assert [is_bookkeeping(path) for path in ("MANIFEST.json", "QUARANTINED.json", part_name(1, 2), "w")] == [
        True,
        True,
        True,
        False,
    ]


# --- a store that is slow or fails ---


class WhileSending(FolderStore):
    """Calls `during` after a file's first bytes were read, before the rest."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.during: Callable[[str], None] = lambda key: None
        self.sent: list[str] = []

    def put_file(self, key: str, source: Path | Callable[[], BinaryIO]) -> None:
        assert callable(source)
        during, sent = self.during, self.sent

        class Slow:
            def __init__(self) -> None:
                self.file, self.first = source(), True

            def read(self, size: int = -1) -> bytes:
                data = self.file.read(2 if self.first else size)
                if self.first:
                    self.first = False
                    during(key)
                return data

            def __enter__(self) -> Slow:
                return self

            def __exit__(self, *exc: object) -> None:
                self.file.close()

        super().put_file(key, Slow)  # type: ignore[arg-type]
        sent.append(key.rpartition("/")[2])


def test_a_checkpoint_that_the_program_prunes_while_it_is_sent_is_stored_whole(paths: PodPaths, tmp_path: Path) -> None:
    store = WhileSending(tmp_path / "s3")
    path = write(paths, 1, {"a": b"first file", "b": b"second file"})

    def prune(key: str) -> None:
        if path.exists():
            fmt.remove(path)

    store.during = prune
    watched = watch(paths, store)
    watched.poll()
    assert not path.exists()
    assert watched.final == "step-1-a1"
    assert is_sound(store, "step-1-a1")


def test_with_a_store_slower_than_the_program_saves_the_newest_arrive(paths: PodPaths, tmp_path: Path) -> None:
    """Each upload lasts longer than three saves: nothing on the disk is as old as what is being sent."""
    store, steps = WhileSending(tmp_path / "s3"), iter(range(2, 40))
    saves = Checkpointer(directory=paths.checkpoints, keep_on_disk=3)

    def writer(folder: Path) -> None:
        (folder / "weights").write_bytes(os.urandom(20))

    def saving(key: str) -> None:
        if key.endswith("weights"):
            for step in (next(steps, None) for _ in range(4)):
                assert step is None or saves.save(writer, step, block=True)

    saves.save(writer, 1, block=True)
    store.during = saving
    watched = watch(paths, store)
    watched.poll()
    steps_stored = [entry["step"] for entry in watched.stored()]
    assert len(steps_stored) >= 8
    assert max(steps_stored) == 39
    assert all(is_sound(store, entry["stored"]) for entry in watched.stored())


def test_without_a_description_one_that_vanishes_while_it_is_sent_is_not_stored(
    paths: PodPaths, tmp_path: Path
) -> None:
    store, folder = WhileSending(tmp_path / "s3"), paths.checkpoints / "model"
    folder.mkdir()
    for name in ("a", "b", "COMPLETE"):
        (folder / name).write_bytes(b"some bytes")
    store.during = lambda key: shutil.rmtree(folder, ignore_errors=True)
    watched = watch(paths, store)
    watched.poll()
    assert (watched.stored(), stored(store, "model-a1")) == ([], None)


def test_a_file_that_is_rewritten_within_one_tick_of_the_clock_is_never_stored_half_and_half(
    paths: PodPaths, tmp_path: Path
) -> None:
    store = WhileSending(tmp_path / "s3")
    file = write(paths, 1, {"w": b"one version of it"}) / "w"
    before = file.stat()

    def rewrite(key: str) -> None:
        if key.endswith("/w"):
            file.write_bytes(b"two VERSIONS of it")
            file.write_bytes(b"two VERSION of it")
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    store.during = rewrite
    watched = watch(paths, store)
    watched.poll()
    assert stored(store, "step-1-a1") is None
    assert watched.quarantined == ["checkpoint step-1: file w does not match its digest; set aside as .bad-step-1"]
    assert [item.key for item in store.list("")] == []


def test_an_upload_that_is_broken_off_goes_on_where_it_was(paths: PodPaths, store: FailingStore) -> None:
    write(paths, 1, {f"f{number}": b"x" * number for number in range(6)})
    store.fails = lambda operation, key: key.endswith("f3")
    watched = watch(paths, store)
    for _ in range(3):
        with pytest.raises(StorageError):
            watched.poll()
    store.fails = lambda *_: False
    watched.poll()
    names = [key.rpartition("/")[2] for key in store.written]
    assert sorted(names) == sorted(
        [*(f"f{number}" for number in range(6)), "COMPLETE", "checkpoint.json", "MANIFEST.json"]
    )
    assert is_sound(store, "step-1-a1")


def test_what_the_store_has_cut_short_is_sent_again(paths: PodPaths, store: FailingStore) -> None:
    write(paths, 1, {"w": b"0123456789"})
    put, cut = store.put_file, [True]

    def put_less(key: str, source: Any) -> None:
        put(key, source)
        if cut and key.endswith("/w"):
            cut.clear()
            (store.root / key).write_bytes(b"0123")

    store.put_file = put_less  # type: ignore[method-assign]
    watched = watch(paths, store)
    with pytest.raises(StorageError, match=r"has 4 of its 10 bytes; it is sent again"):
        watched.poll()
    assert stored(store, "step-1-a1") is None
    watched.poll()
    assert is_sound(store, "step-1-a1")


@settings(max_examples=40)
@given(failing=st.lists(st.integers(0, 7), max_size=6), prunes=st.sets(st.integers(0, 7), max_size=3))
def test_at_every_moment_what_counts_in_the_store_is_sound(
    tmp_path_factory: pytest.TempPathFactory, failing: list[int], prunes: set[int]
) -> None:
    """The store refuses some calls and the program removes folders at others, in any order."""
    root = tmp_path_factory.mktemp("moments")
    paths, store = make_paths(root / "pod"), FailingStore(root / "s3")
    folders = [write(paths, step, {"a": os.urandom(9), "b/c": os.urandom(9)}) for step in (1, 2, 3)]
    calls, bad = [0], list(failing)

    def fails(operation: str, key: str) -> bool:
        number, calls[0] = calls[0], calls[0] + 1
        if number in prunes and folders:
            fmt.remove(folders.pop(0))
        if number in bad:
            bad.remove(number)
            return True
        return False

    watched = watch(paths, store)
    for _ in range(len(failing) + 1):
        store.fails = fails
        with suppress(StorageError):
            watched.poll()
        store.fails = lambda *_: False
        for item in list(store.list("t/jobs/job-1/checkpoints/")):
            if item.key.endswith("MANIFEST.json"):
                assert is_sound(store, item.key.split("/")[-2])
    watched.poll()
    assert {entry["stored"] for entry in watched.stored()} >= {f"{folder.name}-a1" for folder in folders}


def test_the_program_is_told_what_is_stored_and_a_link_that_it_put_there_is_not_followed(
    paths: PodPaths, store: FailingStore, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    watched = watch(paths, store)
    told = paths.io / STORED_FILE
    assert json.loads(told.read_text()) == []
    told.unlink()
    told.symlink_to(elsewhere)
    write(paths, 1, {"w": b"1"})
    watched.poll()
    assert json.loads(told.read_text()) == ["step-1"]
    assert (told.is_symlink(), elsewhere.read_text()) == (False, "mine")


# --- checkpoints in parts ---


def parts_of(store: FolderStore, tmp_path: Path, learners: int, **options: Any) -> list[CheckpointUploader]:
    """Sidecars of learners that have saved step 5 together."""
    made = []
    for learner in range(1, learners + 1):
        paths = make_paths(tmp_path / f"pod-{learner}")
        files = {f"__{learner - 1}_0.distcp": bytes([learner]) * 5}
        write(paths, 5, files, part=learner, parts=learners, **options)
        made.append(watch(paths, store, learner, learners))
    return made


NAME = "step-5-a1-s5afe5afe"


@settings(max_examples=20)
@given(order=st.permutations([0, 1, 2]), lost=st.integers(0, 2))
def test_parts_are_a_checkpoint_when_the_last_one_is_stored_whoever_that_is(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], lost: int
) -> None:
    root = tmp_path_factory.mktemp("parts")
    store = FailingStore(root / "s3")
    sidecars = parts_of(store, root, 3)
    for index in order[:2]:
        sidecars[index].poll()
        assert stored(store, NAME) is None
    sidecars[order[2]].poll()
    manifest = stored(store, NAME)
    assert manifest is not None
    assert is_sound(store, NAME)
    assert (manifest["parts"], manifest["step"], manifest["bytes"]) == (
        3,
        5,
        sum(f["size"] for f in manifest["files"].values()),
    )
    before = store.get_bytes(KEYS.checkpoint_marker("job-1", NAME))
    store.delete(KEYS.checkpoint_marker("job-1", NAME))
    assert join_parts(store, KEYS, "job-1", NAME) == "whole"
    assert store.get_bytes(KEYS.checkpoint_marker("job-1", NAME)) == before
    assert join_parts(store, KEYS, "job-1", NAME) == "whole"
    # A file that got lost is noticed, and so is a part.
    store.delete(KEYS.checkpoint_marker("job-1", NAME))
    store.delete(f"{KEYS.checkpoint('job-1', NAME)}/__{lost}_0.distcp")
    assert join_parts(store, KEYS, "job-1", NAME) == "waiting"
    store.delete(f"{KEYS.checkpoint('job-1', NAME)}/{part_name(lost + 1, 3)}")
    assert join_parts(store, KEYS, "job-1", NAME) == "waiting"


def test_every_sidecar_learns_that_the_checkpoint_is_whole_or_gone(store: FailingStore, tmp_path: Path) -> None:
    first, second = parts_of(store, tmp_path, 2)
    first.poll()
    assert [(item.name, item.uploaded) for item in first.shown()] == [(NAME, False)]
    assert first.final is None
    second.poll()
    assert second.final == NAME
    first.poll()
    assert first.final is None  # not asked again within seconds
    first._next_join = 0.0
    first.poll()
    assert (first.final, [item.uploaded for item in first.shown()]) == (NAME, [True])
    again = tmp_path / "again"
    third, _ = parts_of(FailingStore(again / "s3"), again, 2)
    third.poll()
    other = FolderStore(again / "s3")
    for item in list(other.list("")):
        other.delete(item.key)
    third._next_join = 0.0
    third.poll()
    assert (third.final, third.stored(), third.shown()) == (None, [], ())


def test_a_quarantined_checkpoint_is_not_made_whole_again(store: FailingStore, tmp_path: Path) -> None:
    for sidecar in parts_of(store, tmp_path, 2):
        sidecar.poll()
    store.put_bytes(f"{KEYS.checkpoint('job-1', NAME)}/QUARANTINED.json", b"{}")
    store.delete(KEYS.checkpoint_marker("job-1", NAME))
    assert join_parts(store, KEYS, "job-1", NAME) == "gone"
    assert stored(store, NAME) is None


def test_parts_of_different_saves_never_meet(store: FailingStore, tmp_path: Path) -> None:
    first, _ = parts_of(store, tmp_path / "a", 2)
    _, second = parts_of(store, tmp_path / "b", 2, save="0ther0ther")
    first.poll()
    second.poll()
    assert not [key for key in store.written if key.endswith("MANIFEST.json")]


def test_parts_that_contradict_each_other_are_told_and_never_one(store: FailingStore, tmp_path: Path) -> None:
    first, second = parts_of(store, tmp_path, 2)
    (tmp_path / "pod-2/checkpoints/step-5/__0_0.distcp").write_bytes(b"the other's")
    first.poll()
    second.poll()
    assert second._warnings.texts() == (
        f"checkpoint {NAME}: file __0_0.distcp is in more than one part; it is not used",
    )
    assert stored(store, NAME) is None
    part = {"name": "n", "step": 1, "files": {}}
    with pytest.raises(PartsDisagree, match="its parts differ in step"):
        merge("n", [part, {**part, "step": 2}])
    key = KEYS.checkpoint("job-1", "odd")
    for number, parts in ((1, 2), (2, 3)):
        store.put_bytes(f"{key}/{part_name(number, parts)}", to_json(part))
    with pytest.raises(PartsDisagree, match="its parts count themselves differently"):
        join_parts(store, KEYS, "job-1", "odd")


def test_a_part_that_cannot_be_is_told(store: FailingStore, paths: PodPaths) -> None:
    write(paths, 1, {"w": b"1"}, part=2, parts=3)
    write(paths, 2, {"w": b"1"}, part=2, parts=2, save="no word")
    both = write(paths, 3, {"w": b"1"}, part=1, parts=2)
    shutil.copy(both / "checkpoint-0001-of-0002.json", both / "checkpoint-0002-of-0002.json")
    watched = watch(paths, store, 2, 2)
    watched.poll()
    assert store.written == []
    assert sorted(watched._warnings.texts()) == [
        "checkpoint step-1 is not stored: checkpoint-0002-of-0003.json counts 3 parts, and the job has 2 learner(s)",
        "checkpoint step-2 is not stored: `save` in checkpoint-0002-of-0002.json is no word of 8 to 64 letters and "
        "digits",
        "checkpoint step-3 is not stored: it holds checkpoint-0001-of-0002.json and checkpoint-0002-of-0002.json; "
        "a learner saves one part of a checkpoint",
    ]


def test_a_damaged_part_is_set_aside_and_the_checkpoint_never_counts(store: FailingStore, tmp_path: Path) -> None:
    first, second = parts_of(store, tmp_path, 2)
    (tmp_path / "pod-2/checkpoints/step-5/__1_0.distcp").write_bytes(b"wrong")
    first.poll()
    second.poll()
    assert second.quarantined == [
        "checkpoint step-5: file __1_0.distcp does not match its digest; set aside as .bad-step-5"
    ]
    assert stored(store, NAME) is None
    assert join_parts(store, KEYS, "job-1", NAME) == "waiting"


# --- parts on the disk ---


def test_parts_that_lie_together_are_one_checkpoint(paths: PodPaths, tmp_path: Path) -> None:
    other = make_paths(tmp_path / "pod-2")
    one = write(paths, 7, {"a": b"1"}, part=1, parts=2)
    two = write(other, 7, {"b": b"2"}, part=2, parts=2)
    assert not fmt.is_whole(one)
    with pytest.raises(fmt.PartialCheckpoint, match="1 of its 2 parts lie here"):
        fmt.read(one)
    assert Checkpointer(directory=paths.checkpoints).latest() is None
    assert one.is_dir()
    for name in ("b", "checkpoint-0002-of-0002.json"):
        shutil.copy(two / name, one / name)
    found = Checkpointer(directory=paths.checkpoints).latest()
    assert found is not None
    assert (found.step, found.parts, sorted(found.files)) == (7, 2, ["a", "b"])
    (one / "b").write_bytes(b"3")
    with pytest.raises(fmt.CorruptCheckpoint, match="file b does not match its digest"):
        fmt.read(one)


def test_parts_of_different_saves_are_no_checkpoint(paths: PodPaths, tmp_path: Path) -> None:
    one = write(paths, 7, {"a": b"1"}, part=1, parts=2)
    two = write(make_paths(tmp_path / "pod-2"), 7, {"b": b"2"}, part=2, parts=2, save="another0")
    for name in ("b", "checkpoint-0002-of-0002.json"):
        shutil.copy(two / name, one / name)
    with pytest.raises(fmt.CorruptCheckpoint, match="its parts are of different saves"):
        fmt.read(one)
