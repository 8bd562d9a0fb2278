"""The wait for staging, in the shells that images have."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from learner.sidecar_fakes import until

from updraft.kubernetes.gate import gated
from updraft_learner import contract

SHELLS = [path for name in ("dash", "bash", "busybox", "ash", "ksh") if (path := shutil.which(name))]


class Program:
    """A program's container below `root`."""

    def __init__(self, root: Path, shell: str) -> None:
        self.root, self.shell = root, shell
        (root / "io").mkdir()
        (root / "code").mkdir()
        self.process: subprocess.Popen[str] | None = None

    def start(self, command: str) -> subprocess.Popen[str]:
        wait, *rest = gated(command)
        applet = ["sh"] if self.shell.endswith("busybox") else []
        self.process = subprocess.Popen(
            [self.shell, *applet, "-c", wait.replace(contract.ROOT_DIR, str(self.root)), *rest],
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self.process

    def ends(self) -> tuple[int, str, str]:
        assert self.process is not None
        out, error = self.process.communicate(timeout=30)
        return self.process.returncode, out, error


@pytest.fixture(params=SHELLS)
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path, request.param)
    yield program
    if program.process is not None and program.process.poll() is None:
        program.process.kill()
        program.process.communicate()


def test_the_program_runs_in_its_folder_as_it_was_written(program: Program) -> None:
    (program.root / "io/staged").touch()
    program.start('echo "$PWD" \'$HOME "quoted"\'; exit 3')
    assert program.ends() == (3, f'{program.root}/code $HOME "quoted"\n', "")


def test_it_is_told_where_its_restored_checkpoint_lies(program: Program) -> None:
    path = "out put/$(id)-5"
    (program.root / "io/resume-from").write_text(f"{path}\n")
    (program.root / "io/staged").touch()
    program.start(f'echo "${contract.RESUME_FROM_ENV}"')
    assert program.ends() == (0, f"{program.root}/code/{path}\n", "")


def test_it_does_not_start_before_everything_is_staged(program: Program) -> None:
    process = program.start("echo started")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    (program.root / "io/staged").touch()
    assert program.ends() == (0, "started\n", "")


def test_failed_staging_ends_it_with_the_code_and_the_reason(program: Program) -> None:
    reason = "code: a\\b 'c' $(id) is not in the store; submit the job again"
    (program.root / "io/staging-failed").write_text(f"65 {reason}\n")
    program.start("echo never")
    assert program.ends() == (65, "", f"updraft: staging failed: {reason}\n")


def test_a_pod_that_is_removed_meanwhile_does_not_wait(program: Program) -> None:
    process = program.start("echo never")
    until("it waits", lambda: _handles_sigterm(process.pid), 10)
    process.send_signal(signal.SIGTERM)
    assert program.ends() == (143, "", "")


def test_the_program_has_the_systems_own_answer_to_sigterm(program: Program) -> None:
    (program.root / "io/staged").touch()
    process = program.start("exec sleep 60")
    until("it sleeps", lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n", 10)
    process.send_signal(signal.SIGTERM)
    assert program.ends()[0] == -signal.SIGTERM


def _handles_sigterm(pid: int) -> bool:
    caught = next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt:")
    ).split()[1]
    return bool(int(caught, 16) & 1 << (signal.SIGTERM - 1))
