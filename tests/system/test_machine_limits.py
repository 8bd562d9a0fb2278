"""What a user sees when the machine itself lacks something: a port, room on the disk. Nothing is left behind."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from system_helpers import PREPARED, REPOSITORY

from updraft.stack import processes
from updraft.stack.layout import find_home

pytestmark = [pytest.mark.system, pytest.mark.turn(0), pytest.mark.timeout(300)]

UPDRAFT = str(Path(sys.executable).parent / "updraft")
BOOTSTRAP = str(REPOSITORY / "scripts" / "bootstrap.py")


@pytest.fixture
def home() -> Iterator[Path]:
    if not (PREPARED / "envs" / "mlflow").exists():
        pytest.skip("SKIPPED: the environments are not built; run `make test`, which builds them")
    folder = PREPARED / "limited"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    yield folder
    run(folder, UPDRAFT, "down")
    shutil.rmtree(folder, ignore_errors=True)


def run(home: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "UPDRAFT_HOME": str(home), "NO_COLOR": "1", "COLUMNS": "300"}
    return subprocess.run(
        command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, timeout=180, check=False
    )


def test_a_port_that_is_taken_is_named_with_its_owner_and_the_way_out(home: Path) -> None:
    for name in ("images", "envs"):
        (home / name).symlink_to(PREPARED / name, target_is_directory=True)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        answer = run(home, UPDRAFT, "up", "--port-airflow", str(port))

        assert answer.returncode == 1, answer.stdout + answer.stderr
        said = " ".join(answer.stderr.split())
        for part in (
            "airflow-api did not start",
            f"port {port} is taken by",
            f"(pid {os.getpid()})",
            "updraft up --port-airflow",
        ):
            assert part in said
        doctor = run(home, UPDRAFT, "doctor")
        assert f"port {port} is taken" in " ".join((doctor.stdout + doctor.stderr).split())
    run(home, UPDRAFT, "down")
    assert processes.marked(find_home(root=home)) == []


@pytest.fixture
def small(home: Path) -> tuple[str, ...]:
    """What to write before a command, so that the home is a disk of 60 MB for it."""
    mounting = f'mount -t tmpfs -o size=60m none {home} && exec "$@"'
    for namespace in (("unshare", "--mount"), ("unshare", "--map-root-user", "--mount")):
        prefix = (*namespace, "sh", "-c", mounting, "sh")
        try:
            if run(home, *prefix, "true").returncode == 0:
                return prefix
        except FileNotFoundError:
            break
    pytest.skip("SKIPPED: nobody here may mount a small disk")


@pytest.mark.parametrize(
    "command",
    [
        (UPDRAFT, "up"),
        (sys.executable, BOOTSTRAP, "--announce", "run", "--", "python", "-m", "updraft.stack", "demo"),
    ],
    ids=["updraft up", "make demo"],
)
def test_too_little_room_is_told_before_anything_is_installed(
    home: Path, small: tuple[str, ...], command: tuple[str, ...]
) -> None:
    answer = run(home, *small, *command)

    assert answer.returncode == 1, answer.stdout + answer.stderr
    said = " ".join(answer.stderr.split())
    for part in ("Not enough disk", str(home), "has 6", "MB free", "are needed", "UPDRAFT_HOME"):
        assert part in said
    assert processes.marked(find_home(root=home)) == []
