"""The elastic examples in `jobs`, with two learners, one of which is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the PyTorch learner environment")

from updraft_learner.elastic.link import request

pytestmark = [pytest.mark.torch, pytest.mark.turn(0), pytest.mark.timeout(300)]
JOBS = Path(__file__).parents[2] / "jobs"
DIGITS = ["--data", "digits/digits.csv"]


@pytest.mark.parametrize(
    ("name", "options", "result"),
    [
        ("elastic-cnn", ["--epochs", "6", *DIGITS], "val_accuracy 0.9"),
        ("elastic-mnist", ["--epochs", "6", *DIGITS], "val_accuracy 0.9"),
        ("elastic-text", ["--epochs", "1"], "val_loss 2."),
    ],
)
def test_an_example_trains_on_when_a_learner_is_killed(
    tmp_path: Path, name: str, options: list[str], result: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    coordinator = [sys.executable, "-m", "updraft_learner.elastic.coordinator", "--port", address.rpartition(":")[2]]
    coordinator += ["--state", str(tmp_path / "state.json"), "--first", "2", "--settle-seconds", "1"]
    program = [sys.executable, "-u", str(JOBS / name / "train.py"), *options]
    environment = {**os.environ, "UPDRAFT_ELASTIC": address, "DATA_DIR": str(JOBS / "data"), "OMP_NUM_THREADS": "1"}
    outputs, processes = [], [subprocess.Popen(coordinator, stdout=subprocess.DEVNULL)]
    try:
        for number in range(2):
            folder = tmp_path / str(number)
            folder.mkdir()
            output = (folder / "output").open("w")
            own = {**environment, "CHECKPOINT_DIR": str(folder / "checkpoints"), "RESULT_DIR": str(folder / "result")}
            outputs.append(folder / "output")
            processes.append(subprocess.Popen(program, cwd=folder, env=own, stdout=output, stderr=output))
            output.close()
        deadline = time.monotonic() + 120
        while not (outputs[1].exists() and "step " in outputs[0].read_text() + outputs[1].read_text()):
            assert time.monotonic() < deadline, [each.read_text()[-2000:] for each in outputs]
            time.sleep(0.05)
        members = request(address, {"type": "status"})["members"]
        victim = next(each for each in processes[1:] if any(f"-{each.pid}-" in member for member in members[1:]))
        victim.send_signal(signal.SIGKILL)
        (survivor,) = (each for each in processes[1:] if each is not victim)
        assert survivor.wait(timeout=150) == 0, [each.read_text()[-2000:] for each in outputs]
        text = outputs[processes.index(survivor) - 1].read_text()
        assert result in text, text[-2000:]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_less_than_ten_lines_make_a_program_elastic() -> None:
    plain, changed = (
        {line.strip() for line in (JOBS / "elastic-mnist" / file).read_text().split('"""', 2)[2].splitlines()}
        for file in ("plain.py", "train.py")
    )
    assert len(changed - plain) < 10
