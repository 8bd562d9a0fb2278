"""What a program's threads are doing: shown when somebody asks, and when nothing in the program can answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from learner.sidecar_fakes import CONFIG, FailingStore, make_paths, until

from updraft_learner.contract import Keys, learner_environment
from updraft_learner.sidecar.signals import SignalReader
from updraft_learner.stacks import StackWatch

DUMP_KEY = Keys("t").dump("job-1", "train", 1, 1)
HANGING = """
import sys, threading, time
import updraft_learner as updraft
updraft.log_metrics({"loss": 1.0}, step=1)
def wait_for_a_peer():
    time.sleep(60)
threading.Thread(target=wait_for_a_peer, daemon=True).start()
print("training", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "logs").mkdir()
    files = {"UPDRAFT_DUMP_FILE": "dump", "UPDRAFT_METRICS_FILE": "metrics.jsonl", "LOG_DIR": "logs"}
    return {**os.environ, **{name: str(tmp_path / path) for name, path in files.items()}}


def start(code: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "training\n"
    return process


def test_a_hanging_program_shows_all_its_threads_once_per_request(tmp_path: Path, environment: dict[str, str]) -> None:
    process = start(HANGING, environment)
    for number in (1, 2):
        (tmp_path / "dump").write_text(str(number))
        shown = tmp_path / "logs" / f"stack-{number}.txt"
        until("the stacks are shown", lambda shown=shown: shown.exists() and "wait_for_a_peer" in shown.read_text())
    process.kill()
    errors = process.communicate()[1]
    for text in (errors, (tmp_path / "logs" / "stack-1.txt").read_text()):
        assert f"updraft: stacks of all threads (request 1, process {process.pid}):" in text
        assert 'File "<string>"' in text
    assert errors.count("(request 1,") == errors.count("(request 2,") == 1


def test_a_call_that_keeps_the_interpreter_lock_is_shown_by_a_timer_of_its_own(environment: dict[str, str]) -> None:
    code = f"""
import ctypes, threading, time
from pathlib import Path
from updraft_learner.stacks import StackWatch
StackWatch(Path({environment["UPDRAFT_DUMP_FILE"]!r}), Path("."), held_seconds=1, wind_seconds=0.3).start()
time.sleep(0.5)
def holds_the_lock():
    ctypes.PyDLL(None).usleep(3_000_000)
print("training", flush=True)
holds_the_lock()
"""
    process = start(code, environment)
    errors = process.communicate(timeout=60)[1]
    assert "Timeout (0:00:01.300000)!" in errors
    assert "holds_the_lock" in errors


def test_a_program_that_is_well_shows_nothing(environment: dict[str, str]) -> None:
    code = """
import time
from pathlib import Path
from updraft_learner.stacks import StackWatch
StackWatch(Path("nowhere/dump"), Path("."), held_seconds=3, wind_seconds=0.1).start()
print("training", flush=True)
time.sleep(5)
"""
    process = start(code, environment)
    assert process.communicate(timeout=60)[1] == ""


def test_forked_children_end_and_their_parent_is_watched_on(environment: dict[str, str]) -> None:
    code = """
import ctypes, os, sys, time
from pathlib import Path
from updraft_learner.stacks import StackWatch
StackWatch(Path("nowhere/dump"), Path("."), held_seconds=1, wind_seconds=0.2).start()
time.sleep(0.3)
for _ in range(5):
    child = os.fork()
    if child == 0:
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
print("training", flush=True)
time.sleep(2)
ctypes.PyDLL(None).usleep(3_000_000)
"""
    process = start(code, environment)
    assert "Timeout" in process.communicate(timeout=60)[1]


def test_outside_the_platform_no_thread_is_started(environment: dict[str, str]) -> None:
    code = (
        "import threading, updraft_learner as u; u.stop_requested(); u.progress\n"
        "print(sorted(thread.name for thread in threading.enumerate()))"
    )
    inside = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    del environment["UPDRAFT_DUMP_FILE"]
    outside = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert (inside.stdout, outside.stdout) == ("['MainThread', 'updraft-stacks']\n", "['MainThread']\n")


def test_a_request_from_before_the_process_counts_if_nobody_has_answered_it(tmp_path: Path) -> None:
    (tmp_path / "dump").write_text("3")
    assert StackWatch(tmp_path / "dump", tmp_path).poll()
    assert not StackWatch(tmp_path / "dump", tmp_path).poll()
    assert (tmp_path / "stack-3.txt").read_text().startswith("updraft: stacks of all threads (request 3")


@pytest.mark.parametrize("text", ["", "x", "1.5", "\xff"])
def test_what_is_no_number_is_no_request(tmp_path: Path, text: str) -> None:
    watch = StackWatch(tmp_path / "dump", tmp_path)
    (tmp_path / "dump").write_text(text, encoding="latin-1")
    assert not watch.poll()
    (tmp_path / "dump").write_text("1")
    assert watch.poll()


def test_a_request_in_the_store_reaches_the_program_and_follows_no_link(tmp_path: Path) -> None:
    paths, store = make_paths(tmp_path / "pod"), FailingStore(tmp_path / "s3")
    requests = SignalReader(CONFIG, paths, store)
    requests.poll()
    assert list(paths.io.iterdir()) == []
    store.put_bytes(DUMP_KEY, b"7\n")
    requests.poll()
    assert (paths.io / "dump").read_text() == "7"
    (paths.io / "dump").unlink()
    requests.poll()  # once per number
    assert not (paths.io / "dump").exists()
    (paths.io / "dump").symlink_to(tmp_path / "elsewhere")
    store.put_bytes(DUMP_KEY, b"8")
    requests.poll()
    assert not (tmp_path / "elsewhere").exists()
    assert (not (paths.io / "dump").is_symlink(), (paths.io / "dump").read_text()) == (True, "8")
    store.put_bytes(DUMP_KEY, b"rm -rf /")
    requests.poll()


def test_the_program_is_told_where_to_look() -> None:
    environment = learner_environment(
        job_id="j", role="train", attempt=1, learner=1, learners=1, gpus=0, run_id="r", experiment_id="1",
        master_addr="a", master_port=1, command="c", checkpoint_seconds=None,
    )  # fmt: skip
    assert environment["UPDRAFT_DUMP_FILE"] == "/updraft/io/dump"
