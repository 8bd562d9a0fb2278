"""What the store says of checkpoints: whole, damaged, unfinished, set aside; on a folder and on a real S3 server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from folder_store import FolderStore
from hypothesis import given
from hypothesis import strategies as st
from unit.storage.conftest import S3Server

from updraft.exceptions import UnavailableError
from updraft.storage import checkpoints, objects
from updraft_learner.checkpoint_names import part_name
from updraft_learner.contract import MARKER_LIMIT_BYTES, Keys
from updraft_learner.store import READ_LIMIT_BYTES, ObjectStore, StorageError, StoredObject

KEYS = Keys("default")
PLACE = ("default", "job-1")


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return FolderStore(tmp_path / "store")
    server: S3Server = request.getfixturevalue("s3")
    return server.new_bucket(f"ckpt-{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:10]}")


def facts(files: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    return {path: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)} for path, data in files.items()}


def put(store: ObjectStore, name: str, files: dict[str, bytes] | None = None, **marker: Any) -> None:
    files = {"w": b"12345", ".metadata": b"67"} if files is None else files
    for path, data in files.items():
        store.put_bytes(f"{KEYS.checkpoint('job-1', name)}/{path}", data)
    whole = {"files": facts(files), "step": 1, "created": 1.0, **marker}
    store.put_bytes(KEYS.checkpoint_marker("job-1", name), json.dumps(whole).encode())


def put_part(store: ObjectStore, name: str, part: int, parts: int = 2, **more: Any) -> None:
    files = {f"__{part - 1}_0.distcp": bytes([part])}
    for path, data in files.items():
        store.put_bytes(f"{KEYS.checkpoint('job-1', name)}/{path}", data)
    described = {"name": name, "local": "step-5", "attempt": 1, "parts": parts, "save": "x", "step": 5, "created": 1.0}
    text = json.dumps({**described, "files": facts(files), **more}).encode()
    store.put_bytes(f"{KEYS.checkpoint('job-1', name)}/{part_name(part, parts)}", text)


def put_file(store: ObjectStore, name: str, path: str, data: bytes) -> None:
    store.put_bytes(f"{KEYS.checkpoint('job-1', name)}/{path}", data)


def paths(store: ObjectStore, name: str) -> list[str]:
    prefix = f"{KEYS.checkpoint('job-1', name)}/"
    return [item.key.removeprefix(prefix) for item in store.list(prefix)]


def test_each_checkpoint_is_one_of_whole_damaged_unfinished_or_set_aside(store: ObjectStore) -> None:
    put(store, "step-1-a1", metrics={"acc": 0.5, "nan": None})
    put(store, "step-2-a1")
    put_file(store, "step-2-a1", "w", b"123")
    put(store, "step-3-a1")
    store.delete(f"{KEYS.checkpoint('job-1', 'step-3-a1')}/.metadata")
    put(store, "step-4-a1", created="nonsense")
    put_file(store, "step-5-a1", "w", b"1")
    put(store, "step-6-a1")
    objects.quarantine_checkpoint(*PLACE, "step-6-a1", "a reason", store=store)
    looked = objects.look_at_checkpoints(*PLACE, store=store)
    assert [info.name for info in looked.whole] == ["step-1-a1"]
    assert looked.whole[0].metrics == {"acc": 0.5}
    assert looked.damaged == {
        "step-2-a1": "file w has 3 bytes instead of 5",
        "step-3-a1": "file .metadata is missing",
        "step-4-a1": "MANIFEST.json cannot be read",
    }
    assert (looked.unfinished, looked.quarantined) == ({"step-5-a1"}, {"step-6-a1"})
    assert objects.look_at_checkpoints(*PLACE, only="step-2-a1", store=store).damaged.keys() == {"step-2-a1"}
    assert objects.look_at_checkpoints(*PLACE, only="step-2", store=store) == checkpoints.Looked()


def test_a_checkpoint_is_verified_file_by_file_and_digest_by_digest(store: ObjectStore) -> None:
    put(store, "step-1-a1")
    for digests in (False, True):
        assert objects.verify_checkpoint(*PLACE, "step-1-a1", digests=digests, store=store) is None
    put_file(store, "step-1-a1", "w", b"1234X")
    assert objects.verify_checkpoint(*PLACE, "step-1-a1", store=store) is None
    wrong = objects.verify_checkpoint(*PLACE, "step-1-a1", digests=True, store=store)
    assert wrong == "file w does not match its digest"
    put_file(store, "step-1-a1", "w", b"1234")
    assert objects.verify_checkpoint(*PLACE, "step-1-a1", store=store) == "file w has 4 bytes instead of 5"
    store.delete(f"{KEYS.checkpoint('job-1', 'step-1-a1')}/w")
    assert objects.verify_checkpoint(*PLACE, "step-1-a1", store=store) == "file w is missing"
    objects.quarantine_checkpoint(*PLACE, "step-1-a1", "file w is missing", store=store)
    objects.quarantine_checkpoint(*PLACE, "step-1-a1", "file w is missing", store=store)
    assert objects.verify_checkpoint(*PLACE, "step-1-a1", store=store) == "it was set aside: file w is missing"
    assert paths(store, "step-1-a1") == [".metadata", "QUARANTINED.json"]
    never = objects.verify_checkpoint(*PLACE, "step-9-a1", store=store)
    assert never == "it is not in the store, or was never completed"


def test_parts_become_a_checkpoint_when_they_are_all_there(store: ObjectStore) -> None:
    name = "step-5-a1-sabcdef01"
    put_part(store, name, 1)
    assert objects.look_at_checkpoints(*PLACE, store=store).unfinished == {name}
    put_part(store, name, 2)
    (found,) = objects.new_checkpoints(*PLACE, 1, store=store)
    assert (found["name"], found["step"], found["bytes"]) == (name, 5, 2)
    assert objects.new_checkpoints(*PLACE, 2, store=store) == []
    assert objects.verify_checkpoint(*PLACE, name, digests=True, store=store) is None
    objects.delete_checkpoint(*PLACE, name, store=store)
    assert paths(store, name) == []


def test_parts_that_contradict_each_other_are_damaged(store: ObjectStore) -> None:
    put_part(store, "step-5-a1-sabcdef01", 1)
    put_part(store, "step-5-a1-sabcdef01", 2, step=6)
    put_part(store, "step-6-a1-sabcdef01", 1)
    put_file(store, "step-6-a1-sabcdef01", part_name(2, 2), b"{")
    assert objects.look_at_checkpoints(*PLACE, store=store).damaged == {
        "step-5-a1-sabcdef01": "checkpoint step-5-a1-sabcdef01: its parts differ in step",
        "step-6-a1-sabcdef01": "a description of its parts cannot be read",
    }


def test_a_marker_that_no_sidecar_writes_is_damaged_and_not_read(store: ObjectStore) -> None:
    put(store, "step-1-a1")
    put(store, "step-2-a1", metrics={"x" * MARKER_LIMIT_BYTES: 1.0})
    too_large = f"MANIFEST.json is larger than {MARKER_LIMIT_BYTES} bytes"
    looked = objects.look_at_checkpoints(*PLACE, store=store)
    assert ([info.name for info in looked.whole], looked.damaged) == (["step-1-a1"], {"step-2-a1": too_large})
    assert objects.verify_checkpoint(*PLACE, "step-2-a1", store=store) == too_large


def test_a_checkpoint_with_metrics_without_end_is_damaged(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    put(store, "step-1-a1", metrics={f"m{n}": 1.0 for n in range(1000)})
    put(store, "step-2-a1", metrics={f"m{n}": 1.0 for n in range(1001)})
    put(store, "step-3-a1", metrics={f"{n:0250d}": 1.0 for n in range(500)})
    looked = objects.look_at_checkpoints(*PLACE, store=store)
    assert [info.name for info in looked.whole] == ["step-1-a1"]
    assert set(looked.damaged.values()) == {"it has too many metrics; the limit is 1000"}


def test_parts_that_are_described_at_too_great_length_are_damaged(tmp_path: Path) -> None:
    store, name = Counting(tmp_path), "step-5-a1-sabcdef01"
    put_part(store, name, 1)
    put_part(store, name, 2, metrics={"x" * MARKER_LIMIT_BYTES: 1.0})
    assert list(objects.look_at_checkpoints(*PLACE, store=store).damaged) == [name]
    assert store.reads == []


class Dying(FolderStore):
    """Does so many writes and no more."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.left = 1_000

    def delete(self, key: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise StorageError("unreachable", "the object store cannot be reached")
        super().delete(key)


@given(st.integers(0, 6))
def test_half_deleted_it_neither_counts_nor_is_made_whole_again(
    tmp_path_factory: pytest.TempPathFactory, survives: int
) -> None:
    store, name = Dying(tmp_path_factory.mktemp("dying")), "step-5-a1-sabcdef01"
    put_part(store, name, 1)
    put_part(store, name, 2)
    assert [info.name for info in objects.list_checkpoints(*PLACE, store=store)] == [name]
    store.left = survives
    try:
        objects.delete_checkpoint(*PLACE, name, store=store)
    except UnavailableError:
        looked = objects.look_at_checkpoints(*PLACE, store=store)
        assert looked.damaged == {}
        assert survives < 3 or not looked.whole
        assert survives >= 2 or [info.name for info in looked.whole] == [name]
    store.left = 1_000
    objects.delete_checkpoint(*PLACE, name, store=store)
    assert list(store.list("")) == []


class Counting(FolderStore):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: list[str] = []

    def get_bytes(self, key: str, limit_bytes: int = READ_LIMIT_BYTES) -> bytes | None:
        self.reads.append(key)
        return super().get_bytes(key, limit_bytes)


def test_what_was_whole_before_and_is_as_long_is_not_read_again(tmp_path: Path) -> None:
    store = Counting(tmp_path)
    put(store, "step-1-a1")
    put(store, "step-2-a1")
    put_file(store, "step-2-a1", "w", b"123456")
    looked = objects.look_at_checkpoints(*PLACE, sure={"step-1-a1": 7, "step-2-a1": 7}, store=store)
    assert (looked.sure, looked.damaged.keys()) == ({"step-1-a1"}, {"step-2-a1"})
    assert store.reads == [KEYS.checkpoint_marker("job-1", "step-2-a1")]


class Away(FolderStore):
    def list(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        raise StorageError("unreachable", "the object store cannot be reached")


def test_a_store_that_does_not_answer_says_nothing_about_a_checkpoint(tmp_path: Path) -> None:
    put(FolderStore(tmp_path), "step-1-a1")
    for ask in (objects.verify_checkpoint, objects.new_checkpoints):
        with pytest.raises(UnavailableError):
            ask(*PLACE, "step-1-a1", store=Away(tmp_path))  # type: ignore[operator]


def test_of_several_learners_at_one_step_the_lowest_learners_is_the_newest(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    put(store, "step-7-a1-l2", step=7, learner=2, created=9.0)
    put(store, "step-7-a1", step=7, learner=1, created=1.0)
    put(store, "step-6-a1-l3", step=6, learner=3, created=10.0)
    assert objects.latest_checkpoint(*PLACE, store=store) == "step-7-a1"


@pytest.mark.parametrize("path", ["MANIFEST.json", "PART-0001-of-0002.json"])
def test_a_document_that_breaks_its_reader_is_one_checkpoints_fault(tmp_path: Path, path: str) -> None:
    store = FolderStore(tmp_path)
    put(store, "step-1-a1")
    put_part(store, "step-5-a1-sx", 2)
    put_file(store, "step-5-a1-sx", path, b"[" * 100_000)
    looked = checkpoints.look(store, KEYS, "job-1")
    assert [info.name for info in looked.whole] == ["step-1-a1"]
    assert list(looked.damaged) == ["step-5-a1-sx"]
