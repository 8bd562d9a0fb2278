"""The line of shell that starts the launcher: run by a real shell, with the file that staging writes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from updraft.kubernetes.several import through_launcher
from updraft_learner import contract
from updraft_learner.launcher_file import launcher_file

pytestmark = pytest.mark.timeout(90)


def line(folder: Path, command: str, processes: int = 2) -> str:
    """Return the line of shell for a pod whose folders are below `folder`."""
    file = folder / "launcher.pyz"
    file.write_bytes(launcher_file())
    started = through_launcher(command, processes=processes, cpus=processes, grace_seconds=30)
    return started.replace(contract.LAUNCHER_FILE, shlex.quote(str(file)))


def python_first(folder: Path, python: str) -> dict[str, str]:
    """Return an environment in which `python3` is the given script."""
    (folder / "bin").mkdir()
    script = folder / "bin" / "python3"
    script.write_text(f"#!/bin/sh\n{python}\n")
    script.chmod(0o755)
    return {"PATH": f"{folder}/bin:{os.environ['PATH']}", "NUM_LEARNERS": "2", "NODE_RANK": "1"}


def run(text: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", "-c", text]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_is_run_in_each_process_as_it_was_written(tmp_path: Path) -> None:
    environment = python_first(tmp_path, f'exec {sys.executable} "$@"')
    both = f"touch {tmp_path}/$RANK; until [ -e {tmp_path}/2 ] && [ -e {tmp_path}/3 ]; do sleep 0.05; done"
    ended = run(line(tmp_path, f"""printf '%s\\n' "it's $RANK"; {both}; exit 3"""), environment)
    assert ended.returncode == 3
    assert {"[rank2]: it's 2", "[rank3]: it's 3"} <= set(ended.stdout.splitlines())


def test_an_image_without_python_is_told_what_it_lacks(tmp_path: Path) -> None:
    ended = run(line(tmp_path, "true"), {"PATH": str(tmp_path)})
    assert ended.returncode == 127
    assert "the image has no Python 3.8 or newer, which resources.processes_per_learner and " in ended.stderr


def test_sigterm_while_python_starts_is_not_lost(tmp_path: Path) -> None:
    """The shell has its trap before it starts Python; Python has no handler yet, and ends."""
    environment = python_first(tmp_path, f"touch {tmp_path}/starting; exec sleep 60")
    process = subprocess.Popen(["/bin/sh", "-c", line(tmp_path, f"touch {tmp_path}/started")], env=environment)
    try:
        until = time.monotonic() + 30
        while not (tmp_path / "starting").exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    finally:
        process.kill()
    assert not (tmp_path / "started").exists()


def test_sigterm_reaches_the_programs_and_their_exit_code_is_the_learners(tmp_path: Path) -> None:
    environment = python_first(tmp_path, f'exec {sys.executable} "$@"')
    command = f"trap 'exit 75' TERM; touch {tmp_path}/$RANK; while :; do sleep 0.05; done"
    process = subprocess.Popen(["/bin/sh", "-c", line(tmp_path, command)], env=environment)
    try:
        until = time.monotonic() + 30
        while not ((tmp_path / "2").exists() and (tmp_path / "3").exists()):
            assert time.monotonic() < until
            time.sleep(0.02)
        process.terminate()
        assert process.wait(30) == 75
    finally:
        process.kill()
