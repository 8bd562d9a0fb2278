"""Programs that really fail: what the catalogue makes of their exit codes and last lines."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from updraft.lifecycle.membership import Membership
from updraft.recovery.facts import ContainerFacts, PodFacts
from updraft.recovery.outcome import Action, FailureClass, Outcome, judge

TAIL_LINES = 20


def run(command: Sequence[str] | str, folder: Path) -> Outcome:
    """As a learner's container runs it, with an address space of 512 MiB. A shell reports a signal as 128 + number."""
    shell = command if isinstance(command, str) else shlex.join(command)
    ended = subprocess.run(
        ["/bin/sh", "-c", f"ulimit -c 0; ulimit -v 524288; {shell}"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
        timeout=60,
    )
    code = 128 - ended.returncode if ended.returncode < 0 else ended.returncode
    return judged(code, ended.stdout.splitlines()[-TAIL_LINES:])


def judged(code: int, tail: Sequence[str]) -> Outcome:
    main = ContainerFacts("terminated", reason="Error", exit_code=code, finished_at="2026-01-01T00:00:00Z")
    pod = PodFacts("p", "u", 1, "Failed", "", "", False, None, ContainerFacts("running"), main, node="n")
    outcome = judge([pod], membership=Membership.first(1), markers={1: None}, tails={1: tail}, memory="512 MiB")
    assert outcome is not None
    return outcome


SHARED = """
import os
os.environ["UPDRAFT_MEMORY_BYTES"] = str(100 << 20)
from updraft_learner.shared import memory
memory.create(memory.SharedLayout(elements=1 << 26, moments=1, learners=2))
"""
CREDENTIALS = """
from botocore.exceptions import ClientError
raise ClientError({"Error": {"Code": "InvalidAccessKeyId", "Message": "unknown"}}, "GetObject")
"""
STREAMS = """
class DataError(OSError): pass
class DataChangedError(DataError): pass
raise DataError("s3://b/x: bucket 'b' at http://s3: reading x: the object store cannot be reached; waited for 600 s")
"""
CHANGED = STREAMS.rpartition("raise")[0] + (
    "raise DataChangedError(\"s3://b/x: object 'x' was changed after the job was staged; submit the job again\")"
)
REFUSED = """
import socket
deaf = socket.socket()
deaf.bind(("127.0.0.1", 0))
socket.create_connection(deaf.getsockname())
"""


@pytest.mark.parametrize(
    ("program", "label", "words"),
    [
        ("open('/dev/full', 'w').write('x' * 100_000)", "node.disk_full", "No space left on device"),
        ("x = bytearray(1 << 40)", "program.memory", "MemoryError"),
        ("open('/updraft/data/train.csv')", "data.missing", "/updraft/data/train.csv"),
        ("open('data/train.csv')", "data.missing", "data/train.csv"),
        (STREAMS, "data.away", "waited for 600 s"),
        (CHANGED, "data.changed", "object 'x' was changed after the job was staged"),
        ("open('model.pt')", "program.exit", "model.pt"),
        (CREDENTIALS, "credentials.refused", "InvalidAccessKeyId"),
        (SHARED, "program.shared_training_memory", "this needs 1,536.1 MiB of "),
        ("import pandsa", "program.import", "No module named 'pandsa'"),
        (
            "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-I', '-S', '-m', 'pip']))",
            "program.pip",
            "environment.requirements",
        ),
        ("import cv2", "program.import", "environment: {requirements: [opencv-python-headless]}"),
        ("import skimage.io", "program.import", "environment: {requirements: [scikit-image]}"),
        ("from os import pth", "program.import", "cannot import name 'pth'"),
        ("x = (", "program.syntax", "SyntaxError"),
        ("if True:\nx = 1", "program.syntax", "IndentationError"),
        (REFUSED, "network.connection", "ConnectionRefusedError"),
        ("raise ValueError('no labels')", "program.exit", "ValueError: no labels"),
        ("import sys; sys.exit('no labels')", "program.exit", "no labels"),
        ("import argparse; p = argparse.ArgumentParser(); p.add_argument('--lr', required=True); p.parse_args([])",
         "program.arguments", "--lr"),
    ],
)  # fmt: skip
def test_programs_that_fail_for_real(program: str, label: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program)
    outcome = run([sys.executable, "train.py"], tmp_path)
    assert (outcome.label, outcome.node) == (label, "n")
    assert words in outcome.reason
    assert "the program exited with" in outcome.reason


@pytest.mark.parametrize(("command", "code"), [("trian.py", 127), ("./plain", 126), (f"{sys.executable} trian.py", 2)])
def test_a_command_that_is_not_there(command: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("not executable")
    outcome = run(command, tmp_path)
    label = "program.arguments" if code == 2 else "program.command"
    assert (outcome.label, outcome.cause, outcome.action) == (label, FailureClass.CONFIGURATION, Action.STOP)
    assert f"exited with {code}" in outcome.reason


@pytest.mark.parametrize(
    ("number", "label", "cause"),
    [
        (signal.SIGABRT, "program.abort", FailureClass.PROGRAM),
        (signal.SIGBUS, "program.bus_error", FailureClass.PROGRAM),
        (signal.SIGSEGV, "program.segfault", FailureClass.PROGRAM),
        (signal.SIGILL, "program.illegal_instruction", FailureClass.PROGRAM),
        (signal.SIGFPE, "program.exit", FailureClass.PROGRAM),
    ],
)
def test_a_program_that_a_signal_ends_is_named_by_it(
    number: signal.Signals, label: str, cause: FailureClass, tmp_path: Path
) -> None:
    outcome = run([sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(number)})"], tmp_path)
    assert (outcome.label, outcome.cause) == (label, cause)
    assert f"{128 + number} ({number.name})" in outcome.reason


@pytest.mark.parametrize(
    ("number", "label"), [(signal.SIGKILL, "container.killed"), (signal.SIGTERM, "container.stopped")]
)
def test_a_program_that_is_stopped_or_killed_from_outside_is_not_to_blame(
    number: signal.Signals, label: str, tmp_path: Path
) -> None:
    outcome = run([sys.executable, "-c", f"import os; print('epoch 1'); os.kill(os.getpid(), {int(number)})"], tmp_path)
    assert (outcome.label, outcome.cause, outcome.action) == (label, FailureClass.INFRASTRUCTURE, Action.RELAUNCH)


def test_a_program_that_leaves_with_75_was_preempted(tmp_path: Path) -> None:
    outcome = run("echo saved; exit 75", tmp_path)
    assert (outcome.label, outcome.cause) == ("job.preempted", FailureClass.PREEMPTED)
    assert outcome.reason == "learner 1 saved its work and left on request"


@pytest.mark.parametrize(
    ("code", "label", "cause", "action"),
    [
        (64, "program.configuration", FailureClass.CONFIGURATION, Action.STOP),
        (65, "program.data", FailureClass.DATA, Action.STOP),
        (66, "checkpoint.refused", FailureClass.INFRASTRUCTURE, Action.OLDER_CHECKPOINT),
        (74, "store.unreachable", FailureClass.INFRASTRUCTURE, Action.RELAUNCH),
    ],
)
def test_the_contracts_exit_codes_mean_what_it_says(
    code: int, label: str, cause: FailureClass, action: Action, tmp_path: Path
) -> None:
    outcome = run(f"echo what it says; exit {code}", tmp_path)
    assert (outcome.label, outcome.cause, outcome.action) == (label, cause, action)
    assert outcome.reason == f"learner 1: the program exited with {code}: what it says"
