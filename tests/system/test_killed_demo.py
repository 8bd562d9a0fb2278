"""`make down` leaves nothing of a demo that was killed, whatever it was doing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from system_helpers import PREPARED, REPOSITORY

from updraft.stack import processes
from updraft.stack.layout import find_home

pytestmark = [pytest.mark.system, pytest.mark.turn(2), pytest.mark.timeout(300)]


@pytest.fixture
def home() -> Iterator[Path]:
    if not (PREPARED / "envs" / "mlflow").exists():
        pytest.skip("SKIPPED: the environments are not built; run `make test`, which builds them")
    folder = PREPARED / "killed-demo"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("images", "envs"):
        (folder / name).symlink_to(PREPARED / name, target_is_directory=True)
    yield folder
    _stack("down", folder)
    shutil.rmtree(folder, ignore_errors=True)


def _stack(verb: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "updraft.stack", verb],
        env={**os.environ, "UPDRAFT_HOME": str(home)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.parametrize("seconds", [1, 8, 30])
def test_nothing_is_left_of_a_killed_demo(home: Path, seconds: float) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "updraft.stack", "demo"],
        env={**os.environ, "UPDRAFT_HOME": str(home)},
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    time.sleep(seconds)  # the moment of the kill, not a wait for something
    os.killpg(demo.pid, signal.SIGKILL)
    demo.wait()

    ended = _stack("down", home)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert processes.marked(find_home(root=home)) == []
