"""The lab's program tells the truth about itself: its chain is right only if each step had effect once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faults import witness
from faults.jobs import PROGRAM, chain
from faults.witness import Loss, Session, curve, longest_pause, losses, parse

SECONDS = 20


@dataclass(frozen=True)
class Place:
    """Folders as a pod has them."""

    root: Path

    def start(
        self,
        *,
        attempt: int = 1,
        rank: int = 0,
        world: int = 1,
        port: int = 0,
        command: tuple[str, ...] = (sys.executable, "-S", "chain.py"),
        **params: Any,
    ) -> Any:
        for name in ("ck", "res", "io"):
            (self.root / name).mkdir(exist_ok=True)
        wanted = {"steps": 12, "step_seconds": 0.01, "checkpoint_seconds": 0.03, **params}
        (self.root / "io" / "params.json").write_text(json.dumps(wanted))
        environment = {
            "PATH": os.environ["PATH"],
            "TRAINING_ID": "j",
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "UPDRAFT_ATTEMPT": str(attempt),
            "CHECKPOINT_DIR": str(self.root / "ck"),
            "RESULT_DIR": str(self.root / "res"),
            "UPDRAFT_STOP_FILE": str(self.root / "io" / "stop"),
            "UPDRAFT_METRICS_FILE": str(self.root / "io" / "metrics.jsonl"),
            "UPDRAFT_PARAMS_FILE": str(self.root / "io" / "params.json"),
            "LAB_WITNESS": str(self.root / "witness"),
            "DATA_DIR": str(self.root / "data"),
        }
        return subprocess.Popen(
            command, cwd=PROGRAM, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, **options: Any) -> int:
        with self.start(**options) as process:
            process.communicate(timeout=SECONDS)
        return int(process.returncode)

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / "res" / "result.json").read_text())
        return found

    @property
    def sessions(self) -> list[Session]:
        return witness.read(self.root / "witness" / "j")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def killed_after(place: Place, step: int) -> None:
    with place.start(steps=10_000) as process:
        deadline = time.monotonic() + SECONDS
        while witness.newest_step(place.root / "witness" / "j") < step:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)


def test_a_killed_program_goes_on_from_its_checkpoint_to_the_right_chain(place: Place) -> None:
    killed_after(place, 20)
    last = place.sessions[0].last_step or 0
    assert place.run(attempt=2, steps=last + 20) == 0
    first, second = place.sessions
    assert (first.exit_code, second.exit_code) == (None, 0)
    assert place.result["digest"] == chain("j", last + 20)
    assert [part[0] for part in place.result["lineage"]] == [1, 2]
    assert first.saved
    assert second.restored_step is not None
    assert second.restored_step >= max(first.saved)  # it may be stored and not yet noted
    [loss] = losses(place.sessions)
    assert loss.repeated == last - (second.restored_step or 0)


def test_a_chain_in_which_a_step_had_effect_twice_is_another_one(place: Place) -> None:
    assert place.run(steps=5) == 0
    state = place.root / "ck" / "latest" / "state.json"
    raw = json.loads(state.read_text())
    state.write_text(json.dumps({**raw, "step": raw["step"] - 1}))
    assert place.run(attempt=2, steps=5) == 0
    assert (place.result["steps"], place.result["digest"] == chain("j", 5)) == (5, False)


def test_a_damaged_checkpoint_is_noticed(place: Place) -> None:
    assert place.run(steps=5) == 0
    (place.root / "ck" / "latest" / "weights.bin").write_bytes(b"short")
    assert place.run(attempt=2, steps=9) == 1
    assert [session.damaged for session in place.sessions] == [False, True]


def test_a_request_to_stop_saves_and_leaves_with_75(place: Place) -> None:
    (place.root / "io").mkdir()
    with place.start(steps=10_000) as process:
        while witness.newest_step(place.root / "witness" / "j") < 5:
            time.sleep(0.01)
        (place.root / "io" / "stop").touch()
        process.communicate(timeout=SECONDS)
    assert process.returncode == 75
    assert place.sessions[0].saved[-1] == place.sessions[0].last_step


@pytest.mark.parametrize(("fails", "attempt", "code"), [("always", 2, 3), ("once", 1, 3), ("once", 2, 0)])
def test_a_failure_on_purpose_is_noted(place: Place, fails: str, attempt: int, code: int) -> None:
    assert place.run(attempt=attempt, fails=fails, fail_at=4) == code
    assert place.sessions[0].exit_code == code


def test_two_learners_make_the_same_chain_and_a_lost_one_takes_the_other_with_it(place: Place) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with place.start(rank=1, world=2, port=port) as other:
        assert place.run(rank=0, world=2, port=port) == 0
        other.communicate(timeout=SECONDS)
    assert other.returncode == 0
    assert place.result["digest"] == chain("j", 12)
    with place.start(rank=1, world=2, port=port, attempt=2, steps=10_000) as other:
        with place.start(rank=0, world=2, port=port, attempt=2, steps=10_000) as first:
            while not any(s.attempt == 2 and s.steps for s in place.sessions):
                time.sleep(0.01)
            other.kill()
            output, _ = first.communicate(timeout=SECONDS)
    assert first.returncode == 1
    assert "Connection" in output


def test_a_torn_line_of_a_killed_program_is_passed_over() -> None:
    lines = [
        '{"t": 1.0, "event": "start"}',
        '{"t": 2.0, "event": "restored", "step": 3}',
        '{"t": 3.0, "step": 4}',
        '{"t',
    ]
    assert parse("train-2-7-99", lines) == Session(2, 7, 99, 1.0, 3, ((3.0, 4),), (), None, False, 3.0)
    assert parse("train-1-1-1", ["{"]) is None


def steps(attempt: int, start: float, *numbers: int) -> Session:
    made = tuple((start + 0.2 * n, number) for n, number in enumerate(numbers))
    return Session(1, attempt, attempt, start, 0, made, (), None, False, made[-1][0] if made else start)


def test_losses_count_what_was_made_again_and_the_time_without_steps() -> None:
    first, second, third = steps(1, 100.0, 1, 2, 3), steps(2, 110.0, 2, 3, 4), steps(3, 120.0)
    assert losses([first, second, third]) == [
        Loss(lost_at=100.4, next_step_at=110.0, caught_up_at=110.4, repeated=2),
        Loss(lost_at=110.4, next_step_at=None, caught_up_at=None, repeated=0),
    ]


def test_a_pause_is_seen_and_drawn_with_both_its_ends() -> None:
    session = Session(1, 1, 1, 0.0, 0, ((0.0, 1), (0.2, 2), (5.2, 3), (5.4, 4), (5.6, 5)), (), None, False, 5.6)
    assert longest_pause([session], 1.0, 4.0) == 5.0
    assert longest_pause([session], 5.3, 9.0) == pytest.approx(0.2)
    assert longest_pause([session], 6.0, 9.0) == 0.0
    assert curve(session) == [(0.0, 1), (0.2, 2), (5.2, 3), (5.6, 5)]


@pytest.fixture
def shell(place: Place) -> Place:
    (place.root / "data" / "training").mkdir(parents=True)
    (place.root / "data" / "training" / "digits.csv").write_text("split,label\ntrain,1\ntrain,2\nval,1\n")
    return place


SHELL = ("sh", "count.sh")


def test_the_shell_script_makes_the_same_chain_though_it_is_killed(shell: Place) -> None:
    with shell.start(command=SHELL, steps=10_000) as process:
        deadline = time.monotonic() + 2 * SECONDS
        while not any(s.saved for s in shell.sessions):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.kill()
    killed = shell.sessions[0]
    assert shell.run(command=SHELL, attempt=2, steps=max(killed.saved) + 3) == 0
    steps = max(killed.saved) + 3
    assert shell.result["digest"] == chain("j", steps)
    first, second = shell.result["lineage"]
    assert (first[0], second[0], second[1], second[2]) == (1, 2, first[2], steps)
    assert shell.sessions[-1].exit_code == 0
    assert shell.run(command=(*SHELL, "judge")) == 0
    assert json.loads((shell.root / "res" / "judgement.json").read_text()) == {"right": True}


def test_the_shell_script_leaves_on_request_and_fails_on_purpose(shell: Place) -> None:
    assert shell.run(command=SHELL, fails="once", fail_at=3, steps=5) == 3
    assert shell.run(command=SHELL, attempt=2, fails="once", fail_at=3, steps=5) == 0
    (shell.root / "io" / "stop").touch()
    assert shell.run(command=SHELL, attempt=3, steps=50) == 75


def test_the_shell_scripts_judge_tells_a_wrong_chain(shell: Place) -> None:
    assert shell.run(command=SHELL, steps=3) == 0
    wrong = {**shell.result, "digest": "0" * 64}
    (shell.root / "res" / "result.json").write_text(json.dumps(wrong))
    assert shell.run(command=(*SHELL, "judge")) == 4
