"""Learners with several processes that really fail: what people read about it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from updraft.kubernetes.several import through_launcher
from updraft.lifecycle.membership import Membership
from updraft.recovery.facts import ContainerFacts, PodFacts
from updraft.recovery.outcome import Action, FailureClass, Outcome, judge
from updraft_learner import contract
from updraft_learner.launcher_file import launcher_file

pytestmark = pytest.mark.timeout(90)


def outcome_of(command: str, environment: dict[str, str]) -> Outcome:
    ended = subprocess.run(
        ["/bin/sh", "-c", command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return judged(ended.returncode, ended.stdout.splitlines())


def judged(code: int, tail: list[str]) -> Outcome:
    main = ContainerFacts("terminated", reason="Error", exit_code=code, finished_at="2026-01-01T00:00:00Z")
    pod = PodFacts("p", "u", 1, "Failed", "", "", False, None, ContainerFacts("running"), main, node="n")
    outcome = judge([pod], membership=Membership.first(1), markers={1: None}, tails={1: tail}, memory="512 MiB")
    assert outcome is not None
    return outcome


def launched(folder: Path, command: str) -> str:
    file = folder / "launcher.pyz"
    file.write_bytes(launcher_file())
    line = through_launcher(command, processes=2, cpus=2, grace_seconds=30)
    return line.replace(contract.LAUNCHER_FILE, str(file))


def test_the_reason_names_the_process_that_failed_first_and_its_last_words(tmp_path: Path) -> None:
    program = (
        'if [ "$LOCAL_RANK" = 1 ]; then echo "Traceback (most recent call last):"; echo "  File train.py"; '
        'echo "ValueError: no labels"; exit 1; fi; while :; do sleep 0.05; done'
    )
    outcome = outcome_of(launched(tmp_path, program), {"PATH": os.environ["PATH"]})
    assert outcome.cause is FailureClass.PROGRAM
    assert outcome.reason.startswith("learner 1, rank 1 (local rank 1): the program exited with 1: ")
    assert "ValueError: no labels" in outcome.reason


def test_a_line_of_the_program_with_another_exit_code_names_nobody() -> None:
    outcome = judged(1, ["updraft: launcher: rank 7 (local rank 0) failed first, with exit code 2; its last lines:"])
    assert outcome.reason.startswith("learner 1: ")


def test_an_image_without_python_names_the_field(tmp_path: Path) -> None:
    outcome = outcome_of(launched(tmp_path, "true"), {"PATH": str(tmp_path)})
    assert (outcome.label, outcome.action) == ("launcher.no_python", Action.STOP)
    assert "resources.processes_per_learner" in outcome.reason


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate launch", "deepspeed", "mpirun -np 2"])
def test_a_launcher_that_is_missing_in_the_image_is_named(launcher: str, tmp_path: Path) -> None:
    outcome = outcome_of(f"{launcher} train.py", {"PATH": str(tmp_path)})
    assert (outcome.label, outcome.cause) == ("launcher.missing", FailureClass.CONFIGURATION)
    assert f"{launcher.split()[0]}: " in outcome.reason
    assert "add it to the image" in outcome.reason
