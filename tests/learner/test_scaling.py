"""What a program tells the platform of its scaling: its batch, its noise, the time of steps and of the exchange."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from learner.sidecar_fakes import make_paths

import updraft_learner as updraft
from updraft_learner.record.journal import Journal
from updraft_learner.record.report import Warnings
from updraft_learner.scaling import NoiseAverage
from updraft_learner.sidecar.recorder import Recorder
from updraft_learner.sidecar.tail import METRICS_PATH, MetricsTail


@pytest.fixture(autouse=True)
def metrics_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("UPDRAFT_BATCH", "UPDRAFT_LR_SCALE", "WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "metrics.jsonl"
    monkeypatch.setenv("UPDRAFT_METRICS_FILE", str(path))
    return path


def said(path: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {name: value for line in lines for name, value in line.get("scaling", {}).items()}


def test_a_learner_gets_its_share_and_says_so(metrics_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPDRAFT_BATCH", "96")
    monkeypatch.setenv("UPDRAFT_LR_SCALE", "1.5")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert (updraft.batch_size(8), updraft.lr_scale()) == (32, 1.5)
    assert said(metrics_file) == {"follows_batch": 1}


def test_without_the_platforms_batch_the_program_has_its_own(metrics_file: Path) -> None:
    assert (updraft.batch_size(8), updraft.lr_scale()) == (8, 1.0)
    assert said(metrics_file) == {}


def test_a_batch_that_learners_cannot_share_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPDRAFT_BATCH", "97")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="UPDRAFT_BATCH is '97', which 3 learners cannot share"):
        updraft.batch_size(8)


def test_the_noise_of_gradients_is_found() -> None:
    """Gradients of one sample are the mean plus noise of a known variance: the scale is their ratio."""
    chance, average, dimensions = random.Random(3), NoiseAverage(smoothing=0.999), 40
    small_batch, learners, mean, deviation = 4, 8, 0.5, 3.0
    for _ in range(4000):
        parts = [
            [mean + chance.gauss(0, deviation / math.sqrt(small_batch)) for _ in range(dimensions)]
            for _ in range(learners)
        ]
        whole = [sum(column) / learners for column in zip(*parts, strict=True)]
        average.add(sum(x * x for x in parts[0]), sum(x * x for x in whole), small_batch, small_batch * learners)
    assert average.scale() == pytest.approx(deviation**2 / mean**2, rel=0.1)


@pytest.mark.parametrize("norms", [(math.nan, 1.0, 1, 2), (1.0, math.inf, 1, 2), (1.0, 1.0, 2, 2), (1.0, 1.0, 0, 2)])
def test_a_norm_that_overflowed_is_left_out(norms: tuple[float, float, int, int]) -> None:
    average = NoiseAverage()
    average.add(*norms)
    assert average.estimates == 0
    assert average.scale() is None


def test_few_estimates_are_no_scale() -> None:
    average = NoiseAverage()
    for _ in range(9):
        average.add(2.0, 1.5, 1, 2)
    assert average.scale() is None
    average.add(2.0, 1.5, 1, 2)
    assert average.scale() == pytest.approx((2 - 1.5) / 0.5)


def test_the_sidecar_reads_and_keeps_it(tmp_path: Path) -> None:
    root = tmp_path / "pod"
    paths, warnings = make_paths(root), Warnings()
    journal = Journal(paths.private / "journal")
    recorder = Recorder(journal, warnings)
    tail = MetricsTail(root, journal, recorder, warnings)
    right = [{"follows_batch": 1, "noise": 3.5, "timings": [[8, 0.1]]}, {"noise": 4.5, "other": "x"}]
    wrong: list[Any] = [
        {"noise": "NaN"},
        {"noise": 0},
        {"timings": [[1]]},
        {"timings": 3},
        {"exchange": [[1, 1]] * 17},
        [],
    ]
    lines = [json.dumps({"scaling": each}) for each in (*right, *wrong)]
    (root / METRICS_PATH).write_text("\n".join(lines) + "\n")
    tail.poll()
    assert recorder.scaling() == {"follows_batch": 1.0, "noise": 4.5, "timings": [[8.0, 0.1]]}
    assert recorder.bad_lines == len(wrong)
    again = Recorder(journal, warnings)
    again.restore_counts(json.loads(json.dumps(recorder.counts())))
    assert again.scaling() == recorder.scaling()
