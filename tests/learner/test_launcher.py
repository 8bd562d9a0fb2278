"""The launcher starts the processes of a learner: real processes, ended by themselves, by each other and by signals."""

from __future__ import annotations

import array
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from updraft_learner.launcher_file import launcher_file

pytestmark = pytest.mark.timeout(90)
POD = {"PATH": os.environ["PATH"], "NODE_RANK": "1", "NUM_LEARNERS": "2"}
FOREVER = "while :; do sleep 0.05; done"
# What staging writes, run by a Python without site packages; removed with the module.
LAUNCHER = tempfile.NamedTemporaryFile(suffix=".pyz")  # noqa: SIM115
LAUNCHER.write(launcher_file())
LAUNCHER.flush()


def command(line: str, processes: int = 2, *, stop: float = 20, peer: float = 20) -> list[str]:
    options = ["--processes", str(processes), "--stop-seconds", str(stop), "--peer-seconds", str(peer)]
    return [sys.executable, "-I", "-S", LAUNCHER.name, *options, line]


def launch(line: str, processes: int = 2, **seconds: float) -> subprocess.CompletedProcess[str]:
    arguments = command(line, processes, **seconds)
    return subprocess.run(arguments, env=POD, capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def started(line: str, ready: list[Path], **seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Start two processes and wait until each has made its file."""
    arguments = command(line, **seconds)
    process = subprocess.Popen(arguments, env=POD, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(ready)
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(files: list[Path]) -> None:
    until = time.monotonic() + 30
    while not all(file.exists() for file in files):
        assert time.monotonic() < until, f"{files} did not appear"
        time.sleep(0.02)


def wait_until_full(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process' output, which nobody reads, holds as much as its pipe can."""
    assert process.stdout is not None
    until, held = time.monotonic() + 30, array.array("i", [0])
    while held[0] < fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ) - 4096:
        assert time.monotonic() < until, f"only {held[0]} bytes were written"
        fcntl.ioctl(process.stdout, termios.FIONREAD, held)
        time.sleep(0.02)


def exists(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_each_process_has_its_rank_and_its_lines_say_which() -> None:
    line = 'echo "$RANK $LOCAL_RANK of $WORLD_SIZE $LOCAL_WORLD_SIZE, $GROUP_RANK of $GROUP_WORLD_SIZE"; echo e >&2'
    ended = launch(line, 3)
    assert ended.returncode == 0
    assert sorted(ended.stdout.splitlines()) == [f"[rank{3 + n}]: {3 + n} {n} of 6 3, 1 of 2" for n in range(3)]
    assert sorted(ended.stderr.splitlines()) == [f"[rank{3 + n}]: e" for n in range(3)]


def test_a_process_reads_no_input_and_keeps_a_line_without_an_end() -> None:
    ended = launch("read line; printf 'code %s' $?", 1)
    assert (ended.returncode, ended.stdout) == (0, "[rank1]: code 1\n")


def test_a_very_long_line_does_not_fill_the_memory() -> None:
    ended = launch("head -c 300000 /dev/zero | tr '\\0' x", 1)
    lines = ended.stdout.splitlines()
    assert len(lines) > 1
    assert sum(len(line.removeprefix("[rank1]: ")) for line in lines) == 300_000


@pytest.mark.parametrize(("failure", "code"), [("exit 7", 7), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)])
def test_one_failure_ends_the_others_and_is_the_exit_code(failure: str, code: int) -> None:
    ended = launch(f'if [ "$LOCAL_RANK" = 1 ]; then echo its reason; {failure}; fi; {FOREVER}')
    assert ended.returncode == code
    assert f"updraft: launcher: rank 3 (local rank 1) ended with exit code {code}" in ended.stderr
    summary, *last = ended.stderr.splitlines()[-2:]
    assert summary.startswith("updraft: launcher: rank 3 (local rank 1) failed first, with exit code")
    assert last == ["[rank3]: its reason"]


def test_a_process_that_ends_well_ends_no_other() -> None:
    ended = launch('[ "$LOCAL_RANK" = 1 ] || sleep 0.3; echo done')
    assert ended.returncode == 0
    assert sorted(ended.stdout.splitlines()) == ["[rank2]: done", "[rank3]: done"]


def test_a_deaf_peer_is_killed_after_the_grace_period() -> None:
    ended = launch(f"trap '' TERM; [ \"$LOCAL_RANK\" = 0 ] || exit 5; {FOREVER}", peer=0.3)
    assert ended.returncode == 5
    assert "updraft: launcher: rank 2 (local rank 0) did not end after SIGTERM and is killed" in ended.stderr


def test_processes_that_leave_together_on_request_are_not_hurried() -> None:
    ended = launch('[ "$LOCAL_RANK" = 1 ] || sleep 0.4; exit 75')
    assert ended.returncode == 75
    assert "did not end" not in ended.stderr


def test_sigterm_reaches_the_program_below_each_shell(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        f"pathlib.Path({str(tmp_path)!r}, os.environ['RANK']).touch()\n"
        "time.sleep(60)\n"
    )
    (tmp_path / "train.py").write_text(program)
    line = f"{sys.executable} {tmp_path}/train.py; code=$?; echo saved; exit $code"
    with started(line, [tmp_path / "2", tmp_path / "3"]) as process:
        process.terminate()
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 75
    assert sorted(out.splitlines()) == ["[rank2]: saved", "[rank3]: saved"]


def test_a_program_that_is_deaf_to_sigterm_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    line = f"trap '' TERM; touch {tmp_path}/$RANK; {FOREVER}"
    with started(line, [tmp_path / "2", tmp_path / "3"], stop=0.3) as process:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 137


def test_nothing_that_a_process_started_outlives_the_launcher(tmp_path: Path) -> None:
    """Daemons in sessions of their own included, and the launcher does not wait for them."""
    ended = launch(f"setsid sleep 300 & echo $! >{tmp_path}/$RANK; exit 0")
    assert ended.returncode == 0
    assert not any(exists(int(file.read_text())) for file in tmp_path.iterdir())


def test_sigterm_before_the_first_process_starts_none() -> None:
    """The handler is there before the first process: a signal in between is not lost."""
    program = (
        "import os, signal, sys\n"
        f"sys.path.insert(0, {LAUNCHER.name!r})\n"
        "from launcher.run import start_and_wait\n"
        "from launcher.signals import StopRequest\n"
        "stop = StopRequest()\n"
        "stop.listen()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.exit(start_and_wait(stop, 'echo started', 2, 5.0, 5.0))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (128 + signal.SIGTERM, "")


def test_a_log_that_nobody_reads_does_not_keep_the_launcher_for_ever(tmp_path: Path) -> None:
    """The launcher is blocked in a write to its full output; the last resort ends it and its processes."""
    program = (
        "import os, signal, sys\n"
        f"sys.path.insert(0, {LAUNCHER.name!r})\n"
        "from launcher import run, signals\n"
        "signals.STUCK_SECONDS = run.GIVE_UP_SECONDS = 0.2\n"
        "stop = signals.StopRequest()\n"
        "stop.listen()\n"
        "sys.exit(run.start_and_wait(stop, sys.argv[1], 1, 0.2, 0.2))\n"
    )
    line = f"trap '' TERM; echo $$ >{tmp_path}/pid; touch {tmp_path}/ready; exec yes"
    process = subprocess.Popen([sys.executable, "-c", program, line], stdout=subprocess.PIPE)
    try:
        wait_for([tmp_path / "ready"])
        wait_until_full(process)
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGKILL
    finally:
        process.kill()
        process.communicate()
    assert not exists(int((tmp_path / "pid").read_text()))


def test_more_processes_than_cpus_are_named_in_the_log() -> None:
    arguments = command("exit 0", 3)
    arguments[-1:-1] = ["--cpus", "1.5"]
    ended = subprocess.run(arguments, env=POD, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stderr.startswith("updraft: launcher: warning: 3 processes share 1.5 CPUs; raise resources.cpus")
