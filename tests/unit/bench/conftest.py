"""A home whose S3 server is two processes that sleep, for tests of what breaks and of what finds processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from updraft.stack import processes, records
from updraft.stack.control import initialise
from updraft.stack.layout import Home, find_repository
from updraft.stack.records import PartRecord, PartState

SLEEP = "import time; time.sleep(60)"
# It says when its child runs: a process that is stopped between fork and exec holds its parent up.
FAMILY = f"""
import subprocess, sys
subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}])
print('two', flush=True)
{SLEEP}
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home", find_repository())
    initialise(made)
    return made


@pytest.fixture
def part(home: Home) -> Iterator[subprocess.Popen[bytes]]:
    """Two processes in a session of their own, recorded as the S3 server."""
    child, identity = processes.spawn(
        [sys.executable, "-S", "-c", FAMILY],
        environment={"PATH": "/usr/bin:/bin"},
        cwd=home.root,
        log=home.root / "log",
    )
    record = PartRecord("s3", PartState.READY, pid=identity.pid, create_time=identity.create_time)
    records.write_part(home, record)
    deadline = time.monotonic() + 20
    while "two" not in (home.root / "log").read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    yield child
    for process in processes.session_members(identity):
        process.kill()
    child.wait(timeout=10)
