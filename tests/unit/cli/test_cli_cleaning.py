"""What `clean` finds in a home, what it leaves alone, and that it asks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest
from unit.cli.cli_fakes import Run

from updraft.cli import cleaning
from updraft.stack import control
from updraft.stack.layout import Home, find_repository

OLD = 1_000_000_000.0
IMAGE = "updraft-sidecar-0-1"


def make(folder: Path, *, old: bool, content: str = "12345") -> Path:
    folder.mkdir(parents=True)
    (folder / "file").write_text(content)
    if old:
        for path in (folder / "file", folder):
            os.utime(path, (OLD, OLD))
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(root=tmp_path / "home", repository=find_repository())


def found(home: Home) -> dict[str, int]:
    return {str(i.path.relative_to(home.root)): i.size_bytes for i in cleaning.find(home, older_than_days=7)}


def test_old_folders_are_found_and_new_ones_left(home: Home) -> None:
    make(home.node / "pods" / "old", old=True)
    make(home.node / "pods" / "new", old=False)
    make(home.airflow / "logs" / "dag_id=train_model" / "run_id=old", old=True)
    make(home.airflow / "logs" / "dag_id=train_model" / "run_id=new", old=False)
    make(home.airflow / "logs" / "scheduler" / "2001", old=True)
    make(home.images / IMAGE, old=True)
    make(home.images / "gone-image", old=False)
    assert {path.rpartition("/")[2] for path in found(home)} == {"old", "run_id=old", "gone-image"}
    assert all(size >= 5 for size in found(home).values())


def test_a_change_deep_inside_keeps_a_folder(home: Home) -> None:
    pod = make(home.node / "pods" / "deep", old=True)
    (pod / "v").mkdir()
    (pod / "v" / "checkpoint").write_text("new")
    os.utime(pod, (OLD, OLD))
    assert found(home) == {}


def test_a_pod_whose_process_lives_is_left_alone(home: Home) -> None:
    pod = make(home.node / "pods" / "alive", old=True)
    attempt = pod / "c" / "base" / "0"
    attempt.mkdir(parents=True)
    record = attempt / "process"

    def write(created: float) -> None:
        record.write_text(json.dumps({"main": [os.getpid(), created]}))
        for path in (record, attempt, attempt.parent, pod / "c", pod):
            os.utime(path, (OLD, OLD))

    write(psutil.Process().create_time())
    assert found(home) == {}
    write(psutil.Process().create_time() - 1_000)  # the pid is another process's by now
    assert list(found(home)) == ["node/pods/alive"]


def test_links_are_not_followed(home: Home, tmp_path: Path) -> None:
    theirs = make(tmp_path / "theirs", old=True)
    (home.node / "pods").mkdir(parents=True)
    (home.node / "pods" / "link").symlink_to(theirs)
    assert found(home) == {}


def test_clean_says_what_and_asks_first(home: Home, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPDRAFT_HOME", str(home.root))
    pod = make(home.node / "pods" / "old", old=True)
    dry = run("clean", "--dry-run")
    assert (dry.code, f"folder of an old pod: {pod}" in dry.out, "1 to remove" in dry.out) == (0, True, True)
    assert "freed" not in run("clean", input="n\n").out
    document = json.loads(run("clean", "--json").out)
    assert (document["removed"], [Path(item["path"]) for item in document["found"]]) == (False, [pod])
    assert pod.exists()
    assert "freed" in run("clean", input="y\n").out
    assert not pod.exists()
    assert run("clean", "--yes").out == "nothing to remove\n"


def test_status_of_a_home_that_is_not_set_up(home: Home, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPDRAFT_HOME", str(home.root))
    ran = run("status", "--json")
    assert (ran.code, json.loads(ran.out)["phase"]) == (4, "absent")
    control.initialise(home, ports={"airflow": 23456})
    assert json.loads(run("images", "list", "--json").out)["images"]
