"""What a program writes through log_metrics and progress is what the contract says the sidecar reads."""

from __future__ import annotations

import json
import math
import threading
import time
from pathlib import Path

import pytest

from updraft_learner import log_metrics, progress


@pytest.fixture
def metrics_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setenv("UPDRAFT_METRICS_FILE", str(path))
    return path


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_call_appends_one_line_of_the_contract(metrics_file: Path) -> None:
    began = round(time.time(), 6)
    log_metrics({"loss": 0.5, "accuracy": 1}, step=3)
    progress(step=10, total=120)
    progress(step=20, total=120, epoch=2, epochs=12)
    written = lines(metrics_file)
    times = [line.pop("t") for line in written]
    assert written == [
        {"step": 3, "metrics": {"loss": 0.5, "accuracy": 1.0}},
        {"progress": {"step": 10, "total": 120}},
        {"progress": {"step": 20, "total": 120, "epoch": 2, "epochs": 12}},
    ]
    ended = round(time.time(), 6)
    assert all(isinstance(t, float) and began <= t <= ended for t in times)


def test_nan_and_infinity_are_recorded_not_refused(metrics_file: Path) -> None:
    log_metrics({"loss": math.nan, "bound": math.inf}, step=0)
    (line,) = lines(metrics_file)
    values = line["metrics"]
    assert isinstance(values, dict)
    assert math.isnan(values["loss"])
    assert values["bound"] == math.inf


def test_lines_of_many_threads_never_mix(metrics_file: Path) -> None:
    def write(start: int) -> None:
        for step in range(start, start + 50):
            log_metrics({"x" * 200: step}, step=step)

    threads = [threading.Thread(target=write, args=(start,)) for start in range(0, 400, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(str(line["step"])) for line in lines(metrics_file)) == list(range(400))


def test_a_value_that_is_no_number_is_named(metrics_file: Path) -> None:
    with pytest.raises(TypeError, match="metric 'loss' is a list; it must be a number"):
        log_metrics({"loss": [1.0]}, step=0)  # type: ignore[dict-item]
    assert not metrics_file.exists()


def test_an_unwritable_file_costs_one_warning_and_never_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UPDRAFT_METRICS_FILE", str(tmp_path / "absent" / "metrics.jsonl"))
    for step in range(3):
        log_metrics({"loss": 1.0}, step=step)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("metrics are not recorded") == 1


def test_outside_the_platform_values_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("UPDRAFT_METRICS_FILE", raising=False)
    log_metrics({"loss": 0.25}, step=3)
    progress(step=1, total=2, epoch=1, epochs=2)
    assert capsys.readouterr().out == "step 3: loss 0.25\nprogress: step 1 of 2, epoch 1 of 2\n"
