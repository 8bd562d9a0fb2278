"""What the sidecar stores of a pod that prepares code and data, whatever the pod's program does."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from memory_store import MemoryStore

from updraft_learner import contract
from updraft_learner.contract import Keys, PodConfig
from updraft_learner.pod import PodPaths
from updraft_learner.prepare.copying import copy_sources
from updraft_learner.prepare.documents import REPORT_LIMIT_BYTES, PrepareRequest, SourceRequest
from updraft_learner.prepare.keeping import keep_trees
from updraft_learner.trees import Tree, TreeFile, hash_file

KEYS = Keys("default")
CONFIG = PodConfig("job-1", "default", "prepare", 1, 1, 1, "unused", "default", "", "")
LIMIT_BYTES = 10_000


def put_archive(store: MemoryStore, folder: Path, member: str) -> str:
    """Returns the digest of a tree of one archive."""
    archive = folder / "code.zip"
    with zipfile.ZipFile(archive, "w") as bundle:
        bundle.writestr(member, b"print(1)")
    digest, size = hash_file(archive)
    store.put_file(KEYS.blob(digest), archive)
    tree = Tree((TreeFile("code.zip", digest, size),))
    store.put_bytes(KEYS.tree(tree.sha256), tree.to_json())
    return tree.sha256


class Copied:
    """A pod whose archive is laid out; the program is what a test does instead of it."""

    def __init__(self, folder: Path, member: str = "train.py") -> None:
        self.store = MemoryStore()
        self.paths = PodPaths(folder / "root", folder / "private")
        for made in (self.paths.root, self.paths.private, self.paths.io, self.paths.data):
            made.mkdir(parents=True, exist_ok=True)
        (self.paths.private / "secret").write_text("the platform's key")
        source = SourceRequest(
            "code", "code.zip", "tree", LIMIT_BYTES, tree=put_archive(self.store, folder, member), unpack=True
        )
        request = PrepareRequest((source,)).to_json().encode()
        self.store.put_bytes(KEYS.prepare_request("job-1", 1), request)
        copy_sources(CONFIG, self.paths, self.store, io.StringIO())
        self.before = dict(self.store.objects)

    def work(self) -> tuple[int, str]:
        """The program itself: its exit code, and the reason in its report."""
        from updraft_data.__main__ import main  # not in the environment of a learner, which collects this module too

        code = main({contract.ROOT_ENV: str(self.paths.root)})
        report = json.loads(self.paths.at(contract.PREPARE_REPORT_FILE).read_text())
        return code, report["error"]["message"]

    def report(self, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        self.paths.at(contract.PREPARE_REPORT_FILE).write_bytes(data)

    def kept(self) -> dict[str, Any]:
        """What the platform reads afterwards, and `new`: the other keys that were written."""
        keep_trees(CONFIG, self.paths, self.store)
        key = KEYS.prepared("job-1", 1)
        outcome: dict[str, Any] = json.loads(self.store.objects[key])
        return {**outcome, "new": sorted({*self.store.objects} - {*self.before} - {key})}


@pytest.fixture
def pod(tmp_path: Path) -> Copied:
    return Copied(tmp_path)


DONE = json.dumps({"done": True, "commits": {}, "judged": {}})


def test_what_the_program_unpacked_becomes_a_tree(pod: Copied) -> None:
    assert (pod.paths.data / "code.archive" / "code.zip").is_file()
    (pod.paths.trees / "code").mkdir()
    (pod.paths.trees / "code" / "train.py").write_text("print(1)")
    pod.report(DONE)
    kept = pod.kept()
    assert kept["error"] is None
    tree = Tree.from_json(pod.store.objects[KEYS.tree(kept["sources"]["code"]["tree"])])
    assert [file.path for file in tree.files] == ["train.py"]


@pytest.mark.parametrize("report", [None, "", '{"done": 1}', "[" * 100_000, b"x" * (REPORT_LIMIT_BYTES + 1)])
def test_nothing_is_stored_of_a_program_without_a_whole_report(pod: Copied, report: str | bytes | None) -> None:
    (pod.paths.trees / "code").mkdir()
    (pod.paths.trees / "code" / "train.py").write_text("half of i")
    if report is not None:
        pod.report(report)
    kept = pod.kept()
    assert (kept["sources"], kept["new"]) == ({}, [])


def test_the_programs_own_reason_is_told(pod: Copied) -> None:
    pod.report(json.dumps({"error": {"kind": "limit", "message": "too large"}}))
    kept = pod.kept()
    assert kept["error"] == {"kind": "limit", "message": "too large"}
    assert (kept["sources"], kept["new"]) == ({}, [])


@pytest.mark.parametrize("depth", [1_900, 30_000])
def test_an_archive_of_absurd_depth_is_the_reason(tmp_path: Path, depth: int) -> None:
    """It was a traceback: OSError or RecursionError."""
    code, reason = Copied(tmp_path, "a/" * depth + "f").work()
    assert code == contract.ExitCode.DATA
    assert "is refused: it is longer than 1024 bytes" in reason
    assert len(reason) < 1_000


def test_what_nobody_has_foreseen_is_a_reason_too(pod: Copied, tmp_path: Path) -> None:
    pod.paths.trees.rmdir()
    pod.paths.trees.write_text("no folder")
    failed = "code and data could not be prepared"
    assert pod.work() == (contract.ExitCode.DATA, f"{failed}: NotADirectoryError (Not a directory)")
    pod.paths.work_file.write_text("[")
    assert pod.work() == (contract.ExitCode.DATA, f"{failed}: JSONDecodeError")


def _link_folder(paths: PodPaths) -> None:
    (paths.trees / "code").symlink_to(paths.private, target_is_directory=True)


def _link_all(paths: PodPaths) -> None:
    paths.trees.rmdir()
    (paths.private / "code").mkdir()
    (paths.private / "code" / "secret").write_text("the platform's key")
    paths.trees.symlink_to(paths.private, target_is_directory=True)


def _link_file(paths: PodPaths) -> None:
    (paths.trees / "code").mkdir()
    (paths.trees / "code" / "train.py").symlink_to(paths.private / "secret")


def _pipe(paths: PodPaths) -> None:
    (paths.trees / "code").mkdir()
    os.mkfifo(paths.trees / "code" / "train.py")


def _too_large(paths: PodPaths) -> None:
    (paths.trees / "code").mkdir()
    (paths.trees / "code" / "train.py").write_bytes(bytes(LIMIT_BYTES + 1))


def _nothing(paths: PodPaths) -> None:
    (paths.trees / "code").mkdir()


def _link_bomb(paths: PodPaths) -> None:
    """Thirty folders, each with two links to the next: half a billion paths."""
    root = paths.trees / "code"
    for number in range(30):
        (root / f"d{number}").mkdir(parents=True)
        for name in ("a", "b") if number < 29 else ():
            (root / f"d{number}" / name).symlink_to(f"../d{number + 1}", target_is_directory=True)


def _deep(paths: PodPaths) -> None:
    (paths.trees / "code" / ("a/" * 110)).mkdir(parents=True)


ATTACKS = (_deep, _link_bomb, _link_folder, _link_all, _link_file, _pipe, _too_large, _nothing)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__.strip("_"))
def test_a_program_that_leads_elsewhere_gets_nothing_stored(pod: Copied, attack: Callable[[PodPaths], None]) -> None:
    attack(pod.paths)
    pod.report(DONE)
    kept = pod.kept()
    assert (kept["sources"], kept["new"]) == ({}, [])
    assert kept["error"]["kind"] in ("data", "limit")
    assert not any(b"the platform's key" in data for data in pod.store.objects.values())


def test_an_ignore_file_of_the_program_is_not_read_by_the_sidecar(pod: Copied) -> None:
    """Its patterns can cost any amount of time; the program has removed what they name."""
    folder = pod.paths.trees / "code"
    folder.mkdir()
    (folder / ".updraftignore").write_text("*a*a*a*a*a*a*a*a*ab\n")
    (folder / ("a" * 60)).write_text("kept")
    pod.report(DONE)
    kept = pod.kept()
    tree = Tree.from_json(pod.store.objects[KEYS.tree(kept["sources"]["code"]["tree"])])
    assert sorted(file.path for file in tree.files) == [".updraftignore", "a" * 60]
