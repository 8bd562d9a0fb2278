"""`mpirun` starts processes in all learners without SSH: real launchers, real Open MPI, on the loopback address."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from updraft_learner.launcher.mpi_wire import EXIT, HELLO, RUN, Wire, WireError, greet_agent, greet_leader
from updraft_learner.launcher_file import launcher_file

psutil = pytest.importorskip("psutil")
pytest.importorskip("mpi4py")
pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.skipif(shutil.which("mpirun", path=Path(sys.executable).parent) is None, reason="Open MPI is missing"),
]
LAUNCHER = tempfile.NamedTemporaryFile(suffix=".pyz")  # noqa: SIM115
LAUNCHER.write(launcher_file())
LAUNCHER.flush()
TOKEN = "token-of-the-launch"
SHOWS = """
from mpi4py import MPI
import os
comm = MPI.COMM_WORLD
print(comm.rank, comm.size, comm.allreduce(1), os.environ["LEARNER_ID"], os.environ.get("RANK"))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Gang:
    """The launchers of a job's learners; the first one is the leader."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.learners: dict[int, subprocess.Popen[str]] = {}

    def start(self, number: int, command: str, *, of: int = 3, token: str = TOKEN, stop: float = 10) -> None:
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "TMPDIR": "/tmp",
            "LEARNER_ID": str(number),
            "NUM_LEARNERS": str(of),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "MLFLOW_TRACKING_TOKEN": token,
            "RANK": str(number - 1),
            "WORLD_SIZE": str(of),
        }
        options = ["--processes", "2", "--stop-seconds", str(stop), "--mpi"]
        self.learners[number] = subprocess.Popen(
            [sys.executable, "-I", "-S", LAUNCHER.name, *options, command],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def start_all(self, command: str, *, of: int = 3) -> None:
        for number in range(of, 0, -1):
            self.start(number, command, of=of)

    def end(self, number: int) -> tuple[int, list[str]]:
        out, _ = self.learners[number].communicate(timeout=60)
        return self.learners[number].returncode, out.splitlines()

    def python(self, program: str) -> str:
        file = self.folder / "program.py"
        file.write_text(program)
        return f"mpirun {sys.executable} {file}"

    def close(self) -> None:
        for process in self.learners.values():
            for child in [process, *psutil.Process(process.pid).children(recursive=True)] if alive(process) else []:
                child.kill()
            process.communicate()


def alive(process: subprocess.Popen[str]) -> bool:
    return process.poll() is None


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    made = Gang(tmp_path)
    yield made
    made.close()


def wait_for(file: Path) -> None:
    until = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < until, f"{file} did not appear"
        time.sleep(0.05)


def test_each_learner_has_its_processes(gang: Gang) -> None:
    gang.start_all(gang.python(SHOWS))
    code, lines = gang.end(1)
    assert (code, gang.end(2), gang.end(3)) == (0, (0, []), (0, [])), lines
    assert {f"{rank} 6 6 {rank // 2 + 1} None" for rank in range(6)} <= set(lines)


def test_one_learner_needs_no_other(gang: Gang) -> None:
    gang.start_all(gang.python(SHOWS), of=1)
    code, lines = gang.end(1)
    assert (code, {"0 2 2 1 None", "1 2 2 1 None"} <= set(lines)) == (0, True), lines


def test_the_exit_code_of_a_process_is_the_jobs(gang: Gang) -> None:
    program = "from mpi4py import MPI\nimport os\nMPI.COMM_WORLD.rank == 4 and os._exit(3)\nMPI.COMM_WORLD.barrier()"
    gang.start_all(gang.python(program))
    code, lines = gang.end(1)
    assert code == 3, lines
    assert (gang.end(2)[0], gang.end(3)[0]) == (0, 0)


def test_a_command_without_mpirun_runs_once(gang: Gang) -> None:
    gang.start_all('echo "learner $LEARNER_ID"; exit 7', of=2)
    assert gang.end(1) == (7, ["learner 1"])
    assert gang.end(2) == (0, [])


WAITS = """
from mpi4py import MPI
import os, pathlib, sys, time
comm = MPI.COMM_WORLD
comm.barrier()
pathlib.Path({folder!r}, f"ready-{{comm.rank}}").write_text(str(os.getpid()))
time.sleep(300)
"""


def test_sigterm_ends_all_and_leaves_nothing_behind(gang: Gang) -> None:
    gang.start_all(gang.python(WAITS.format(folder=str(gang.folder))))
    for rank in range(6):
        wait_for(gang.folder / f"ready-{rank}")
    pids = [int((gang.folder / f"ready-{rank}").read_text()) for rank in range(6)]
    for process in gang.learners.values():
        process.send_signal(signal.SIGTERM)
    codes = [gang.end(number)[0] for number in (1, 2, 3)]
    assert codes[0] != 0
    assert codes[1:] == [143, 143]
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_a_leader_that_is_killed_ends_the_others(gang: Gang) -> None:
    gang.start_all(gang.python(WAITS.format(folder=str(gang.folder))))
    for rank in range(6):
        wait_for(gang.folder / f"ready-{rank}")
    pids = [int((gang.folder / f"ready-{rank}").read_text()) for rank in range(2, 6)]
    gang.learners[1].kill()
    for number in (2, 3):
        code, lines = gang.end(number)
        assert code == 1
        assert "the first learner is gone" in lines[-1]
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_who_does_not_know_the_token_runs_nothing_and_is_run_nothing(gang: Gang) -> None:
    gang.start(1, "echo ran", of=2)
    gang.start(2, "none", of=2, token="another")
    until = time.monotonic() + 30
    while True:  # the leader listens, and has not started its command
        try:
            connection = socket.create_connection(("127.0.0.1", gang.port), timeout=10)
            break
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.1)
    wire = Wire(connection)
    with pytest.raises(WireError):
        greet_leader(wire, b"guessed", 2)
    assert alive(gang.learners[1])
    assert alive(gang.learners[2])
    # A false leader is not obeyed either.
    ours, theirs = socket.socketpair()
    errors: list[Exception] = []

    def agent() -> None:
        try:
            greet_leader(Wire(theirs), TOKEN.encode(), 2)
        except WireError as exc:
            errors.append(exc)

    thread = threading.Thread(target=agent)
    thread.start()
    false = Wire(ours)
    false.send(HELLO, 0, bytes(32))
    false.receive()
    false.send(HELLO, 2, bytes(32))
    thread.join(10)
    assert "does not know the token" in str(errors[0])
    gang.learners[2].kill()
    gang.learners[2].communicate()
    gang.start(2, "none", of=2)
    assert gang.end(1) == (0, ["ran"])


def test_a_frame_that_is_too_large_or_cut_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(b"\x00" + (0).to_bytes(4, "big") + (1 << 30).to_bytes(4, "big"))
    with pytest.raises(WireError, match="too large"):
        Wire(theirs).receive()
    ours, theirs = socket.socketpair()
    ours.sendall(b"\x00\x00")
    ours.close()
    with pytest.raises(WireError, match="was closed"):
        Wire(theirs).receive()
    ours, theirs = socket.socketpair()
    Wire(ours).send(RUN, 1, b"x")
    with pytest.raises(WireError, match="no launcher of this job"):
        greet_agent(Wire(theirs), b"t")
    Wire(ours).send(EXIT, 1, b"0")
