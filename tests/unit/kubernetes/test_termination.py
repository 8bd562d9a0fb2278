"""Who hears of SIGTERM: the hook of a container's shell, and the local node's shim, on the same real processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import psutil
import pytest

from updraft.kubernetes.termination import PASS_ON_SIGTERM
from updraft_localnode import shim

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containers are Linux, and so is /proc")

SAVES = """
import select, signal, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "worker.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
worker.stderr.readline()
def leave(*_):
    print("saving", flush=True)
    if select.select([worker.stdout], [], [], 0.5)[0]:
        print("the worker was told", flush=True)
    worker.kill()
    sys.exit(75)
signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGALRM, leave)
print("ready", flush=True)
while True:
    time.sleep(60)
"""
WORKER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("the worker was told", flush=True))
print("ready", file=sys.stderr, flush=True)
while True:
    time.sleep(60)
"""
# As PyTorch's data loaders: workers handle SIGTERM, and the program does not.
DEAF = """
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "worker.py"], stderr=subprocess.PIPE)
worker.stderr.readline()
print("ready", flush=True)
time.sleep(60)
"""
COUNTS = """
import signal, sys, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
signal.signal(signal.SIGWINCH, lambda *_: sys.exit(len(told)))  # Python calls handlers in the order of numbers
print("ready", flush=True)
while True:
    time.sleep(60)
"""
SHELLS = [["/bin/sh"], *([[bash, "--posix"]] if (bash := shutil.which("bash")) else [])]

Start = Callable[..., "subprocess.Popen[str]"]
Tell = Callable[[int], None]


def run_hook(first: int, shell: Sequence[str] = ("/bin/sh",)) -> None:
    """Until all that it started has ended: the pipe is open in every process of it."""
    reads, writes = os.pipe()
    argv = [*shell, "-c", PASS_ON_SIGTERM, "sh", str(first)]
    done = subprocess.run(argv, capture_output=True, text=True, pass_fds=[writes])
    os.close(writes)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with os.fdopen(reads, "rb") as pipe:
        assert pipe.read() == b""


def hook(shell: Sequence[str], first: int) -> None:
    """What a kubelet does; `first` stands for pid 1, which is immune where it is a shell that waits."""
    run_hook(first, shell)
    if shim.told_of_sigterm(first) == [first]:
        os.kill(first, signal.SIGTERM)


def local(first: int) -> None:
    for pid in shim.told_of_sigterm(first):
        os.kill(pid, signal.SIGTERM)


WAYS = [*(pytest.param(partial(hook, shell), id=f"hook of {shell[0]}") for shell in SHELLS), local]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    programs = {"saves": SAVES, "worker": WORKER, "deaf": DEAF, "counts": COUNTS}
    for name, text in programs.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "run.sh").write_text(f"{sys.executable} saves.py\ncode=$?\necho after\nexit $code\n")
    (tmp_path / "cleans.sh").write_text(f"trap 'echo cleaned' EXIT\n{sys.executable} saves.py\n")
    (tmp_path / "odd) S 1 (name").symlink_to("/bin/sh")
    running: list[subprocess.Popen[str]] = []

    def begin(command: str, shell: Sequence[str] = ("/bin/sh",)) -> subprocess.Popen[str]:
        argv = [*shell, "-c", command.replace("PYTHON", sys.executable)]
        process = subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in running:
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in [*psutil.Process(process.pid).children(recursive=True), process]:
                one.kill()
        process.communicate()


@pytest.mark.parametrize("tell", WAYS)
@pytest.mark.parametrize(
    ("command", "said", "code"),
    [
        ("PYTHON saves.py; exit $?", "saving\n", 75),
        ("exec PYTHON saves.py", "saving\n", 75),
        ("bash run.sh && echo never", "saving\nafter\n", 75),
        ("'./odd) S 1 (name' run.sh; exit $?", "saving\nafter\n", 75),
        ("bash cleans.sh; exit $?", "saving\ncleaned\n", 75),
        ("(PYTHON saves.py; exit $?) | (trap '' TERM; cat)", "saving\n", 0),
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


@pytest.mark.parametrize("tell", WAYS)
def test_a_program_that_does_not_handle_it_ends_by_it_whatever_its_workers_do(start: Start, tell: Tell) -> None:
    process = start("PYTHON deaf.py; echo ended $?; exit 4")
    worker = psutil.Process(process.pid).children(recursive=True)[-1]
    tell(process.pid)
    assert process.wait(timeout=20) == 4
    worker.kill()
    assert process.communicate(timeout=20)[0] == "ended 143\n"


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("command", "times"), [("exec PYTHON counts.py", 0), ("PYTHON counts.py; exit $?", 1)])
def test_each_is_told_once_and_the_first_process_by_the_kubelet(
    start: Start, shell: list[str], command: str, times: int
) -> None:
    process = start(command, shell)
    (program,) = shim.told_of_sigterm(process.pid)
    run_hook(process.pid, shell)
    os.kill(program, signal.SIGWINCH)
    assert process.wait(timeout=20) == times


@pytest.mark.parametrize("shell", SHELLS)
def test_the_hook_has_returned_before_anybody_is_told(start: Start, shell: list[str], tmp_path: Path) -> None:
    """A `sleep` of the test's own ends when it is let; a hook whose output were held would not return before."""
    gate, sleep = tmp_path / "gate", tmp_path / "bin" / "sleep"
    os.mkfifo(gate)
    sleep.parent.mkdir()
    sleep.write_text(f"#!/bin/sh\nread -r _ <{gate}\n")
    sleep.chmod(0o755)
    process = start("PYTHON saves.py; exit $?")
    environment = {"PATH": f"{sleep.parent}:{os.environ['PATH']}"}
    argv = [*shell, "-c", PASS_ON_SIGTERM, "sh", str(process.pid)]
    subprocess.run(argv, capture_output=True, check=True, timeout=20, env=environment)
    assert process.poll() is None
    gate.write_text("now\n")
    assert process.communicate(timeout=20)[0] == "saving\n"


def test_a_shell_that_runs_nothing_ends_by_it(start: Start) -> None:
    process = start("sh -c 'echo ready; while :; do :; done'; exit $?")
    run_hook(process.pid)
    assert process.wait(timeout=20) == 143
