"""Who hears of SIGTERM: the hook of a container's shell, and the local node's shim, on the same real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from updraft.kubernetes.termination import PASS_ON_SIGTERM
from updraft.localnode import shim

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containers are Linux, and so is /proc")

SAVES = """
import os, signal, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE)
worker.stdout.readline()
def leave(*_):
    print("saving", flush=True)
    worker.kill()
    sys.exit(75)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
while True:
    time.sleep(60)
"""
WORKER = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("the worker was told", flush=True))
print("ready", flush=True)
while True:
    time.sleep(60)
"""
DEAF = "import time; print('ready', flush=True); time.sleep(60)"

Start = Callable[[str], "subprocess.Popen[str]"]
Tell = Callable[[int], None]


def hook(first: int) -> None:
    """What a kubelet does; `first` stands for pid 1, which is immune where it handles nothing."""
    done = subprocess.run(["/bin/sh", "-c", PASS_ON_SIGTERM, "sh", str(first)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    if shim.handlers(first) == [first]:
        os.kill(first, signal.SIGTERM)


def local(first: int) -> None:
    for pid in shim.handlers(first):
        os.kill(pid, signal.SIGTERM)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "saves.py").write_text(f"WORKER = {WORKER!r}\n{SAVES}")
    (tmp_path / "deaf.py").write_text(DEAF)
    (tmp_path / "run.sh").write_text(f"{sys.executable} saves.py\ncode=$?\necho after\nexit $code\n")
    running: list[subprocess.Popen[str]] = []

    def begin(command: str) -> subprocess.Popen[str]:
        argv = ["/bin/sh", "-c", command.replace("PYTHON", sys.executable)]
        process = subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in running:
        for one in [*psutil.Process(process.pid).children(recursive=True), process] if process.poll() is None else []:
            one.kill()
        process.communicate()


@pytest.mark.parametrize("tell", [hook, local])
@pytest.mark.parametrize(
    ("command", "said", "code"),
    [
        ("PYTHON saves.py; exit $?", "saving\n", 75),
        ("exec PYTHON saves.py", "saving\n", 75),
        ("bash run.sh && echo never", "saving\nafter\n", 75),
        ("(PYTHON saves.py; exit $?) | cat", "saving\n", 0),
        ("PYTHON saves.py 2>&1 & wait $!; exit $?", "saving\n", 75),
        ("trap 'kill $!; wait $!; exit 9' TERM; PYTHON saves.py & wait $!", "saving\n", 9),
    ],
)
def test_the_program_hears_it_and_ends_its_workers_itself(
    start: Start, tell: Tell, command: str, said: str, code: int
) -> None:
    process = start(command)
    tell(process.pid)
    assert process.communicate(timeout=20)[0] == said
    assert process.returncode == code


def test_where_nobody_handles_it_the_program_ends_by_it(start: Start) -> None:
    process = start("PYTHON deaf.py; echo ended $?; exit 4")
    hook(process.pid)
    assert process.communicate(timeout=20)[0] == "ended 143\n"
    assert process.returncode == 4


def test_a_first_process_without_children_is_the_kubelets(start: Start) -> None:
    process = start("exec PYTHON deaf.py")
    hook(process.pid)
    assert process.poll() is None
    assert shim.handlers(process.pid) == []


@pytest.mark.parametrize("mask", [signal.SIGHUP, signal.SIGALRM, signal.SIGPIPE, signal.SIGCHLD, signal.SIGUSR1])
def test_other_signals_that_are_handled_do_not_count(start: Start, tmp_path: Path, mask: signal.Signals) -> None:
    code = f"import signal; signal.signal({int(mask)}, lambda *_: None); {DEAF}"
    (tmp_path / "other.py").write_text(code)
    process = start("PYTHON other.py; exit $?")
    assert shim.handlers(process.pid) == []
    hook(process.pid)
    process.communicate(timeout=20)
    assert process.returncode == 143
