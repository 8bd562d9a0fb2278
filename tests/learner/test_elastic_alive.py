"""A killed learner is known to be dead before its connections end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from updraft_learner.elastic import alive
from updraft_learner.elastic.alive import AliveLock, report_death, wait_for_death, wait_for_lock

pytestmark = pytest.mark.skipif(alive.FUTEX_CALL is None, reason="no number of the futex call is known here")
# Holds the lock, with a connection and so much memory that the kernel needs some time to free it.
LEARNER = """
import socket, sys, threading
from pathlib import Path
from updraft_learner.elastic.alive import AliveLock

held = b"x" * (600 << 20)
connection = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
lock = AliveLock(Path(sys.argv[1]), "127.0.0.1:1", "3-name")
lock.take()
print("taken", flush=True)
sys.stdin.readline()
lock.release()
print("released", flush=True)
sys.stdin.readline()
"""


class Waiting:
    """Another thread that waits for the death of who holds the lock."""

    def __init__(self, path: Path) -> None:
        self.found: Any = "waits"
        self.at = 0.0
        self.locked = threading.Event()
        self._stopped = threading.Event()
        self._path = path
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            file = wait_for_lock(self._path.parent, self._path.name, self._stopped.is_set)
            self.locked.set()
            self.found = None if file is None else wait_for_death(file, self._stopped.is_set)
        except Exception as exc:  # noqa: BLE001 - compared by the tests
            self.found = exc
        self.at = time.monotonic()

    def end(self) -> Any:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.found

    def stop(self) -> Any:
        self._stopped.set()
        return self.end()


def learner(path: Path, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LEARNER, str(path), str(port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    return process


def test_the_death_is_known_before_the_connections_end(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    waiting = Waiting(path)  # before the file is there
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = learner(path, server.getsockname()[1])
        connection, _ = server.accept()
        assert waiting.locked.wait(20)
        os.kill(process.pid, signal.SIGKILL)
        assert connection.recv(1) == b""
        ended = time.monotonic()
    assert waiting.end() is True
    assert waiting.at < ended
    process.wait()


def test_who_ends_by_itself_releases_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = learner(path, server.getsockname()[1])
        waiting = Waiting(path)
        assert process.stdin is not None
        process.stdin.write("release\n")
        process.stdin.flush()
        assert waiting.end() is False
        os.kill(process.pid, signal.SIGKILL)  # later it does not matter
        process.wait()
    assert Waiting(path).end() is False


def test_waiting_can_be_stopped(tmp_path: Path) -> None:
    assert Waiting(tmp_path / "missing").stop() is None
    lock = AliveLock(tmp_path / "alive", "h:1", "1-a")
    lock.take()
    assert Waiting(tmp_path / "alive").stop() is False
    lock.release()


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"\xff" * 5000, b"\0" * 128 + b"no JSON", b"\0" * 128 + b"[1]", b"\0" * 128 + b"{}"]
    + [b"\0" * 128 + b"[" * 3000, b"\0" * 128 + b'{"address": "h:99999999999999999999", "member": "m"}'],
)
def test_a_file_that_the_program_has_spoiled_ends_nothing(
    tmp_path: Path, content: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    """The program owns the file, so it may write anything there."""
    (tmp_path / "alive").write_bytes(content)
    looks = iter([False, False])
    report_death(tmp_path, "alive", "token", lambda: next(looks, True))
    assert capfd.readouterr().err.startswith("the coordinator cannot be told early of a killed learner: ")


def test_only_a_regular_file_is_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name, why in (("fifo", "not a regular file"), ("link", "Too many levels of symbolic links")):
        report_death(tmp_path, name, "token", lambda: False)
        assert why in capfd.readouterr().err


def test_a_file_that_is_truncated_does_not_end_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    lock = AliveLock(path, "h:1", "1-a")
    lock.take()
    waiting = Waiting(path)
    assert waiting.locked.wait(20)
    os.truncate(path, 0)
    assert waiting.stop() is False
    os.truncate(path, alive.SIZE)  # this process still holds the lock, whose memory is in the file


def test_a_lock_that_cannot_be_taken_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lock = AliveLock(tmp_path / "no" / "alive", "h:1", "1-a")
    lock.take()
    lock.release()
    assert "cannot be locked: [Errno 2] No such file" in capfd.readouterr().err
