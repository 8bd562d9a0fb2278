"""What an elastic training reports of its steps: from its line in the metrics file to the learner's status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from learner.sidecar_fakes import make_paths

from updraft_learner.elastic.step_reports import EVERY_SECONDS, StepReports
from updraft_learner.record.journal import Journal
from updraft_learner.record.report import Warnings
from updraft_learner.sidecar.recorder import Recorder
from updraft_learner.sidecar.tail import METRICS_PATH, MetricsTail


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UPDRAFT_METRICS_FILE", str(tmp_path / "metrics.jsonl"))
    return tmp_path / "metrics.jsonl"


def test_only_the_learners_own_time_counts(lines: Path) -> None:
    clock = Clock()
    reports = StepReports(clock)
    for step in range(1, 4):
        clock.now += 0.2  # the program's own work between two steps
        reports.begin()
        clock.now += 0.5
        reports.computed(0.25)
        clock.now += 0.3  # the others are slower
        reports.committed(step)
    found = [json.loads(line)["training"] for line in lines.read_text().splitlines()]
    assert found == [
        {"step": 1, "work": 0.25, "seconds": 0.5},
        {"step": 2, "work": 0.5, "seconds": 1.0},
        {"step": 3, "work": 0.75, "seconds": 1.5},
    ]


def test_a_fast_training_reports_once_a_second(lines: Path) -> None:
    clock = Clock()
    reports = StepReports(clock)
    for step in range(1000):
        clock.now += 0.01
        reports.committed(step)
    assert len(lines.read_text().splitlines()) == pytest.approx(10 / EVERY_SECONDS, abs=1)


def test_outside_the_platform_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("UPDRAFT_METRICS_FILE", raising=False)
    clock = Clock()
    reports = StepReports(clock)
    clock.now += 10
    reports.committed(1)
    assert capsys.readouterr() == ("", "")


def test_the_sidecar_reads_and_keeps_them(tmp_path: Path) -> None:
    root = tmp_path / "pod"
    paths, warnings = make_paths(root), Warnings()
    journal = Journal(paths.private / "journal")
    recorder = Recorder(journal, warnings)
    right = [{"step": 7, "work": 0.5, "seconds": 1.5}, {"step": 9, "work": 1, "seconds": 2}]
    wrong = [{"step": 8}, {"step": 8, "work": -1, "seconds": 1}, {"step": 8, "work": 1, "seconds": "NaN"}, []]
    lines = [json.dumps({"training": each}) for each in (*right, *wrong)]
    (root / METRICS_PATH).write_text("\n".join(lines) + "\n")
    MetricsTail(root, journal, recorder, warnings).poll()
    assert recorder.training() == {"first": 7, "step": 9, "work": 1.0, "seconds": 2.0}
    assert recorder.bad_lines == len(wrong)
    again = Recorder(journal, warnings)
    again.restore_counts(json.loads(json.dumps(recorder.counts())))
    assert again.training() == recorder.training()
    assert recorder.steps() == {}
