"""Data that the learners of a node share, with two sidecars as two processes."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from folder_store import FolderStore
from learner.sidecar_fakes import CONFIG
from learner.stage_fakes import upload

from updraft_learner.contract import DataMount, ExitCode
from updraft_learner.pod import PodPaths
from updraft_learner.stage import StageError, stage_once
from updraft_learner.streams.node_trees import lay_on_node, release_all
from updraft_learner.streams.room import CacheFolder
from updraft_learner.trees import Tree, TreeFile

MIB = 1 << 20


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    yield
    release_all()


def stage(tmp_path: Path, store: FolderStore, tree: str, pod: str, *, mount: str = "set", cache: bool = True) -> str:
    root = tmp_path / pod
    (tmp_path / "node").mkdir(exist_ok=True)
    paths = PodPaths(root, root / "private", tmp_path / "node" if cache else None)
    config = dataclasses.replace(
        CONFIG, data=(DataMount(tree, mount, "mount", "s3://b/set"),), cache_bytes=100 * MIB, prefix="tenants/default"
    )
    out = io.StringIO()
    stage_once(config, paths, store, out)
    return out.getvalue()


def test_the_second_job_of_a_node_copies_nothing(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "s3")
    tree = upload(store, tmp_path / "source", {"a.txt": "a", "deep/b.txt": "b"})
    assert "2/2 files" in stage(tmp_path, store, tree, "first")
    for blob in (tmp_path / "s3").rglob("blobs/*"):
        blob.unlink()
    release_all()  # the first job has ended
    assert "2 files, 2 bytes, already on the node" in stage(tmp_path, store, tree, "second")
    for pod in ("first", "second"):
        place = tmp_path / pod / "data" / "set"
        assert place.is_symlink()
        assert (place / "deep" / "b.txt").read_text() == "b"
        assert not os.stat(place / "a.txt").st_mode & 0o222


def test_packages_lie_on_the_node_too(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "s3")
    tree = upload(store, tmp_path / "source", {"tinya/__init__.py": "VERSION = 1\n"})
    (tmp_path / "node").mkdir()
    config = dataclasses.replace(CONFIG, environment_tree=tree, cache_bytes=100 * MIB, prefix="tenants/default")
    for pod, cache in (("shared", tmp_path / "node"), ("own", None)):
        root = tmp_path / pod
        stage_once(config, PodPaths(root, root / "private", cache), store, io.StringIO())
        assert (root / "environment" / "tinya" / "__init__.py").read_text() == "VERSION = 1\n"
        assert (root / "environment").is_symlink() == (cache is not None)


def test_all_of_the_data_folder_can_be_the_nodes(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "s3")
    tree = upload(store, tmp_path / "source", {"a.txt": "a"})
    stage(tmp_path, store, tree, "pod", mount=".")
    assert (tmp_path / "pod" / "data" / "a.txt").read_text() == "a"
    # A sidecar that is restarted takes its lock again, and changes nothing.
    release_all()
    assert "already on the node" in stage(tmp_path, store, tree, "pod", mount=".")


def test_a_node_without_a_cache_and_data_that_is_too_large_are_named(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "s3")
    tree = upload(store, tmp_path / "source", {"a.txt": "a" * 1000})
    with pytest.raises(StageError, match="s3://b/set: this node has no cache; write mode: copy") as caught:
        stage(tmp_path, store, tree, "pod", cache=False)
    assert caught.value.code == ExitCode.CONFIGURATION
    digest, document = fake_tree(200 * MIB)
    store.put_bytes(f"tenants/default/trees/{digest}.json", document)
    with pytest.raises(StageError, match="do not fit into the node") as caught:
        stage(tmp_path, store, digest, "large")
    assert caught.value.code == ExitCode.STORAGE


def fake_tree(size: int) -> tuple[str, bytes]:
    tree = Tree((TreeFile("x", "0" * 64, size),))
    return tree.sha256, tree.to_json()


def put(folder: Path, size: int) -> Tree:
    (folder / "x").write_bytes(b"x" * size)
    return Tree((TreeFile("x", "0" * 64, size),))


def test_a_tree_in_use_stays_and_an_unused_one_makes_room(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path / "node", 10 * MIB)

    def lay(name: str) -> Path:
        tree = Tree((TreeFile("x", "0" * 64, 4 * MIB),))
        return lay_on_node(cache, name * 64, tree, lambda folder: put(folder, 4 * MIB) and None, print)

    lay("a")
    release_all()
    os.utime(tmp_path / "node" / "trees" / f"{'a' * 64}.json", (1, 1))
    used = lay("b")
    CacheFolder(tmp_path / "node", 10 * MIB).give_up(0)  # nothing to do: there is room
    third = lay("c")
    assert used.is_dir()
    assert third.is_dir()
    assert not (tmp_path / "node" / "trees" / ("a" * 64)).exists()
    with pytest.raises(Exception, match="do not fit"):  # both others are in use
        lay("d")


def test_a_copy_that_broke_off_makes_room_too(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path / "node", 10 * MIB)
    tree = Tree((TreeFile("x", "0" * 64, 6 * MIB),))

    def breaks(folder: Path) -> None:
        put(folder, 3 * MIB)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        lay_on_node(cache, "a" * 64, tree, breaks, print)
    assert (tmp_path / "node" / "trees" / ("a" * 64)).is_dir()
    lay_on_node(cache, "b" * 64, tree, lambda folder: put(folder, 6 * MIB) and None, print)
    assert not (tmp_path / "node" / "trees" / ("a" * 64)).exists()


def test_packages_that_do_not_fit_into_the_cache_are_copied(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "s3")
    tree = upload(store, tmp_path / "source", {"tinya/__init__.py": "VERSION = 1\n"})
    (tmp_path / "node").mkdir()
    config = dataclasses.replace(CONFIG, environment_tree=tree, cache_bytes=5, prefix="tenants/default")
    root = tmp_path / "pod"
    stage_once(config, PodPaths(root, root / "private", tmp_path / "node"), store, io.StringIO())
    assert (root / "environment" / "tinya" / "__init__.py").read_text() == "VERSION = 1\n"
    assert not (root / "environment").is_symlink()


HOLDER = """
import sys, time
from pathlib import Path
from updraft_learner.streams.node_trees import lay_on_node
from updraft_learner.streams.room import CacheFolder
from updraft_learner.trees import Tree, TreeFile

def copy(folder):
    print("copying", flush=True)
    sys.stdin.readline()
    (folder / "x").write_bytes(b"x")

tree = Tree((TreeFile("x", "0" * 64, 1),))
lay_on_node(CacheFolder(Path(sys.argv[1]), 1000), tree.sha256, tree, copy, lambda line: print(line, flush=True))
print("there", flush=True)
sys.stdin.readline()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    import updraft_learner

    environment = {**os.environ, "PYTHONPATH": str(Path(updraft_learner.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_one_copies_and_the_other_waits_and_a_killed_copy_is_taken_over(tmp_path: Path) -> None:
    first = holder(tmp_path)
    try:
        assert line(first) == "copying"
        second = holder(tmp_path)
        try:
            assert line(second) == "another job of this node copies the same data; waiting for it"
            first.kill()
            assert line(second) == "copying"
            third = holder(tmp_path)
            try:
                assert line(third).startswith("another job")
                say(second)
                assert line(second) == line(third) == "there"
            finally:
                third.kill()
                third.wait()
        finally:
            second.kill()
            second.wait()
    finally:
        first.kill()
        first.wait()
    (record,) = (tmp_path / "trees").glob("*.json")
    assert json.loads(record.read_text()) == {"bytes": 1}
    assert time.time() - record.stat().st_mtime < 60
