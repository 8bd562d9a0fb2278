"""The program of `task: text-classification`, as the platform starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the PyTorch learner environment")

pytestmark = [pytest.mark.torch, pytest.mark.turn(2), pytest.mark.timeout(600)]
MESSAGES = Path(__file__).parents[2] / "jobs" / "messages" / "messages.csv"


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DATA_DIR": str(folder), "UPDRAFT_SHARED_LEARNERS": "2"}
    command = [sys.executable, "-W", "ignore", "-m", "updraft_learner.tasks.text_classification"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_it_trains_validates_and_hands_over_a_model(tmp_path: Path) -> None:
    (tmp_path / "messages.csv").write_bytes(MESSAGES.read_bytes())
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "191 texts to train on, 49 held out, 3 labels; 750 steps of 2 learners" in done.stdout
    results = tmp_path / "updraft-out" / "result"
    assert json.loads((results / "labels.json").read_text()) == ["billing", "delivery", "technical"]
    assert (results / "model").is_dir()
    assert "'val_accuracy': 1.0" in done.stdout


def test_data_that_cannot_be_used_ends_it_with_a_code_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "messages.csv").write_text("text,label\nhello,same\n")
    done = run(tmp_path)
    assert done.returncode == 65
    assert done.stderr == (
        "The data cannot be used: all texts in messages.csv have the label 'same'; there must be at least two labels\n"
    )
