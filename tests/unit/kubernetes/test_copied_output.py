"""The lines of shell that copy a program's output: run by a real shell."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from updraft.kubernetes.copied_output import copying_output
from updraft_learner import contract

pytestmark = pytest.mark.timeout(60)


def started(folder: Path, command: str, **options: object) -> subprocess.Popen[str]:
    (folder / "io").mkdir(exist_ok=True)
    script = copying_output(command).replace(contract.OUTPUT_DIR, str(folder / "io" / "output"))
    return subprocess.Popen(
        ["/bin/sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )  # type: ignore[call-overload, no-any-return]


def copied(folder: Path) -> tuple[str, str]:
    output = folder / "io" / "output"
    return (output / "stdout").read_text(), (output / "stderr").read_text()


def test_the_output_goes_where_it_went_and_is_copied(tmp_path: Path) -> None:
    process = started(tmp_path, """printf '%s\\n' "it's $0" 'a  b'; echo wrong >&2; printf end; exit 3""")
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout, stderr) == (3, "it's /bin/sh\na  b\nend", "wrong\n")
    assert copied(tmp_path) == (stdout, stderr)


def test_all_of_a_large_output_is_there_at_the_end(tmp_path: Path) -> None:
    process = started(tmp_path, "seq 1 300000")
    stdout, _ = process.communicate(timeout=30)
    assert stdout.splitlines()[-1] == "300000"
    assert copied(tmp_path)[0] == stdout


def test_a_program_that_is_killed_has_the_code_of_its_signal(tmp_path: Path) -> None:
    process = started(tmp_path, "echo before; kill -KILL $$")
    stdout, _ = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (137, "before\n")


def test_a_process_that_is_left_behind_holds_the_end_up_for_seconds_only(tmp_path: Path) -> None:
    began = time.monotonic()
    process = started(tmp_path, "sleep 50 & echo $!; echo done")
    try:
        assert process.wait(timeout=30) == 0
        assert time.monotonic() - began < 20
    finally:
        pid = int(copied(tmp_path)[0].split()[0])
        os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=30)


def test_what_the_program_prints_when_it_is_asked_to_stop_is_kept(tmp_path: Path) -> None:
    """The signal goes to the whole process group, as the local node sends it at last."""
    process = started(
        tmp_path,
        "trap 'echo saved; exit 75' TERM; echo ready; while :; do sleep 0.1; done",
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGTERM)
    rest, _ = process.communicate(timeout=30)  # until both copies are complete
    assert rest == "saved\n"
    assert copied(tmp_path)[0] == "ready\nsaved\n"


def test_an_image_without_tee_runs_the_program_and_says_so(tmp_path: Path) -> None:
    process = started(tmp_path, "echo works; exit 4", env={"PATH": str(tmp_path)})
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (4, "works\n")
    assert "no metrics are taken from the output" in stderr
