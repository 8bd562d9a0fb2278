"""The example jobs are valid manifests over one data set, and their programs do what they say."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

JOBS = Path(__file__).parents[2] / "jobs"
DATA = JOBS / "data" / "digits" / "digits.csv"


def pod(root: Path, *, data: str = "training", **extra: str) -> dict[str, str]:
    """The environment of a learner on this machine, with the data set in its place."""
    folder = root / "data" / data
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / "digits.csv").symlink_to(DATA)
    for name in ("result", "checkpoints", "io"):
        (root / name).mkdir(exist_ok=True)
    base = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    return base | {
        "DATA_DIR": str(root / "data"),
        "RESULT_DIR": str(root / "result"),
        "CHECKPOINT_DIR": str(root / "checkpoints"),
        "UPDRAFT_METRICS_FILE": str(root / "io" / "metrics.jsonl"),
        "UPDRAFT_STOP_FILE": str(root / "io" / "stop"),
        "UPDRAFT_PARAMS_FILE": str(root / "io" / "params.json"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        **extra,
    }


def call(job: str, *command: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=JOBS / job, env=env, capture_output=True, text=True, timeout=100, check=False)


def metric_lines(root: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (root / "io" / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("job", sorted(path.parent.name for path in JOBS.glob("*/manifest.yaml")))
def test_every_example_is_a_valid_manifest(job: str) -> None:
    reading = pytest.importorskip("updraft.manifest.reading")
    manifest = reading.load_any(JOBS / job / "manifest.yaml").manifest
    assert manifest.name == job
    assert manifest.code == ("." if manifest.task is None else None)


def test_the_data_set_is_whole_and_evenly_split() -> None:
    with DATA.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1797
    assert Counter(row["split"] for row in rows) == {"train": 1199, "val": 299, "test": 299}
    assert {row["label"] for row in rows if row["split"] == "test"} == set("0123456789")
    pixels = {int(value) for row in rows for name, value in row.items() if name.startswith("p")}
    assert pixels == set(range(17))


@pytest.mark.parametrize("job", ["digits-cnn", "digits-ddp"])
def test_the_suite_names_columns_that_exist(job: str) -> None:
    suite = json.loads((JOBS / job / "digits.suite.json").read_text())
    with DATA.open(newline="") as file:
        columns = set(next(csv.reader(file)))
    named = {entry["kwargs"]["column"] for entry in suite["expectations"] if "column" in entry["kwargs"]}
    assert named == columns


def test_the_shell_example_counts_saves_stops_and_resumes(tmp_path: Path) -> None:
    env = pod(tmp_path)
    (tmp_path / "io" / "params.json").write_text(json.dumps({"pause_seconds": 0}))
    (tmp_path / "io" / "stop").touch()
    stopped = call("shell-hello", "sh", "count.sh", env=env)
    assert (stopped.returncode, stopped.stderr) == (75, "")
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-0000000001"]
    assert (tmp_path / "checkpoints" / "step-0000000001" / "COMPLETE").exists()

    (tmp_path / "io" / "stop").unlink()
    done = call("shell-hello", "sh", "count.sh", env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("resumed at digit 1\n")
    assert done.stdout.endswith("counted 1797 samples\n")
    assert len((tmp_path / "result" / "counts.txt").read_text().splitlines()) == 10
    points = [line for line in metric_lines(tmp_path) if "metrics" in line]
    assert [point["step"] for point in points] == list(range(1, 11))
    assert metric_lines(tmp_path)[-1]["progress"] == {"step": 10, "total": 10}


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_a_training_that_was_interrupted_ends_with_the_same_weights(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the PyTorch learner environment")
    weights = {}
    for name, stops in (("whole", False), ("stopped", True)):
        root = tmp_path / name
        root.mkdir()
        env = pod(root)
        (root / "io" / "params.json").write_text(json.dumps({"epochs": 3, "width": 4}))
        if stops:
            (root / "io" / "stop").touch()
            first = call("digits-cnn", sys.executable, "train.py", env=env)
            assert first.returncode == 75, first.stderr
            assert "asked to stop: saved after epoch 1" in first.stdout
            (root / "io" / "stop").unlink()
        last = call("digits-cnn", sys.executable, "train.py", env=env)
        assert last.returncode == 0, last.stderr
        assert ("resumed after epoch 1" in last.stdout) == stops
        weights[name] = hashlib.sha256((root / "result" / "model" / "weights.safetensors").read_bytes()).hexdigest()
    assert weights["whole"] == weights["stopped"]

    judged = call("digits-cnn", sys.executable, "evaluate.py", env=pod(tmp_path / "stopped"))
    assert judged.returncode == 0, judged.stderr
    report = json.loads((tmp_path / "stopped" / "result" / "evaluation.json").read_text())
    assert report["samples"] == sum(map(sum, report["confusion"])) == 299


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_two_learners_train_one_model(tmp_path: Path, free_port: int) -> None:
    pytest.importorskip("torch", reason="needs the PyTorch learner environment")
    learners = []
    for rank in range(2):
        root = tmp_path / str(rank)
        root.mkdir()
        ddp = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port), "RANK": str(rank), "WORLD_SIZE": "2"}
        env = pod(root, **ddp)
        (root / "io" / "params.json").write_text(json.dumps({"epochs": 1}))
        command = [sys.executable, "train.py"]
        learners.append(
            subprocess.Popen(
                command, cwd=JOBS / "digits-ddp", env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    outputs = [learner.communicate(timeout=100)[0] for learner in learners]
    assert [learner.returncode for learner in learners] == [0, 0], outputs
    digests = {(tmp_path / str(rank) / "result" / "params.sha256").read_text() for rank in range(2)}
    assert len(digests) == 1
    assert (tmp_path / "0" / "result" / "model" / "model.json").exists()
    assert not (tmp_path / "1" / "io" / "metrics.jsonl").exists()


@pytest.fixture
def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
