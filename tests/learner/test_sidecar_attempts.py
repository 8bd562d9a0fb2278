"""What a later attempt adds to an earlier one's: steps in the status, system metrics without a tear, older uploads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learner.sidecar_fakes import CONFIG, TOKEN, FailingStore, FakeMlflow, make_paths

from updraft_learner.contract import Keys, LearnerStatus, PodConfig
from updraft_learner.pod import PodPaths
from updraft_learner.record.forward import Forwarder
from updraft_learner.record.journal import Journal, JournalPosition
from updraft_learner.record.report import Warnings
from updraft_learner.sidecar.app import Sidecar
from updraft_learner.sidecar.recorder import Recorder
from updraft_learner.sidecar.stale_uploads import is_older
from updraft_learner.sidecar.system import SystemMetrics, first_seen
from updraft_learner.store import StorageError

KEYS = Keys("t")
CPU = "system/node_0/cpu_utilization_percentage"


@pytest.fixture
def store(tmp_path: Path) -> FailingStore:
    return FailingStore(tmp_path / "s3")


class Attempt:
    """One attempt's sampler and forwarder; `now` is its node's clock."""

    def __init__(self, root: Path, number: int, store: FailingStore, mlflow: FakeMlflow, now: float) -> None:
        self.now, self.warnings = now, Warnings()
        config = replace(CONFIG, attempt=number, system_metrics_seconds=10.0)
        paths = make_paths(root)
        self.journal = Journal(paths.private / "journal")
        recorder = Recorder(self.journal, self.warnings)
        self.forwarder = Forwarder(
            self.journal, mlflow.client(), self.warnings, paths.private / "forward.json", attempt=number
        )
        self.system = SystemMetrics(config, recorder, self.warnings, paths.root, clock=lambda: self.now)
        self.system.begin(first_seen(config, store, clock=lambda: self.now))

    def run(self, seconds: float, *, ends: bool = False) -> None:
        while seconds > 0:
            self.now += min(seconds, 1)
            seconds -= 1
            self.system.poll()
        if ends:
            self.system.poll(last=True)
        while self.forwarder.step():
            pass


def steps(mlflow: FakeMlflow) -> list[int]:
    return [step for step, _ in mlflow.points(CPU)]


def test_system_metrics_go_on_at_their_true_distance(tmp_path: Path, store: FailingStore, mlflow: FakeMlflow) -> None:
    Attempt(tmp_path / "1", 1, store, mlflow, now=1000.5).run(35)
    Attempt(tmp_path / "2", 2, store, mlflow, now=1100.5).run(25)
    assert steps(mlflow) == [10, 20, 30, 110, 120]
    assert len({(item["key"], item["step"]) for item in mlflow.metrics}) == len(mlflow.metrics)


def test_a_program_that_is_shorter_than_an_interval_has_a_sample_of_its_end(
    tmp_path: Path, store: FailingStore, mlflow: FakeMlflow
) -> None:
    Attempt(tmp_path / "1", 1, store, mlflow, now=1000.5).run(0.5, ends=True)  # nothing to average over
    assert steps(mlflow) == []
    Attempt(tmp_path / "2", 2, store, mlflow, now=1050.5).run(3, ends=True)
    assert steps(mlflow) == [53]
    Attempt(tmp_path / "3", 3, store, mlflow, now=1100.5).run(20.5, ends=True)  # its last sample was a moment ago
    Attempt(tmp_path / "4", 4, store, mlflow, now=1200.5).run(24, ends=True)
    assert steps(mlflow) == [53, 110, 120, 210, 220, 224]


def test_repeated_steps_are_in_the_record_and_no_warning_but_others_are(
    tmp_path: Path, store: FailingStore, mlflow: FakeMlflow
) -> None:
    mlflow.metrics = [{"key": "loss", "value": 9.0, "timestamp": 1, "step": step} for step in range(8)]
    again = Attempt(tmp_path / "2", 2, store, mlflow, now=1000)
    recorder = Recorder(again.journal, again.warnings)
    for step in (5, 6, 7, 8, 9):
        recorder.record(recorder.metrics_entries(1.0, step, {"loss": step / 2}, "file"))
    again.run(0)
    assert (mlflow.points("loss")[8:], again.warnings.texts()) == ([(8, 4.0), (9, 4.5)], ())
    assert [entry["step"] for entry, _ in again.journal.read(JournalPosition())] == [5, 6, 7, 8, 9]
    recorder.record(recorder.metrics_entries(2.0, 9, {"loss": 1.0}, "file"))
    again.run(0)
    assert "1 points at a step that already had one" in again.warnings.texts()[0]


def test_a_node_whose_clock_is_behind_puts_no_second_point_on_a_step(
    tmp_path: Path, store: FailingStore, mlflow: FakeMlflow
) -> None:
    Attempt(tmp_path / "1", 1, store, mlflow, now=1000).run(60)
    later = Attempt(tmp_path / "2", 2, store, mlflow, now=1010)
    later.run(80)
    assert steps(mlflow) == [10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert later.warnings.texts() == ()


def test_a_clock_that_is_set_back_stops_no_sampling_for_good(
    tmp_path: Path, store: FailingStore, mlflow: FakeMlflow
) -> None:
    attempt = Attempt(tmp_path / "1", 1, store, mlflow, now=1000)
    attempt.run(30)
    attempt.now -= 15
    attempt.run(40)
    assert steps(mlflow) == sorted(set(steps(mlflow)))
    assert steps(mlflow)[-1] > 40


def test_the_first_attempt_is_noted_once_and_an_unreadable_note_is_replaced(store: FailingStore) -> None:
    assert first_seen(CONFIG, store, clock=lambda: 5.0) == 5.0
    assert first_seen(replace(CONFIG, attempt=2), store, clock=lambda: 9.0) == 5.0
    assert first_seen(replace(CONFIG, learner=2), store, clock=lambda: 9.0) == 9.0
    store.put_bytes(KEYS.first_seen("job-1", "train", 1), b"?")
    assert first_seen(CONFIG, store, clock=lambda: 7.0) == 7.0
    store.fails = lambda operation, key: operation == "get"
    with pytest.raises(StorageError):
        first_seen(CONFIG, store)


class Pod:
    def __init__(self, root: Path, store: FailingStore, mlflow: FakeMlflow, config: PodConfig = CONFIG) -> None:
        self.paths = PodPaths(root) if root.exists() else make_paths(root)
        self.sidecar = Sidecar(config, self.paths, store, mlflow.client(), TOKEN)

    def append(self, *lines: dict[str, Any]) -> None:
        with (self.paths.io / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        self.sidecar.tail.poll()

    def log_metric(self, step: int, **more: Any) -> None:
        recorder = self.sidecar.recorder
        recorder.record(recorder.metrics_entries(1.0, step, {"acc": 1.0}, "mlflow", **more))

    def steps(self) -> dict[str, int]:
        self.sidecar._last_status = None  # a heartbeat is due
        self.sidecar.publish()
        return self.sidecar.status().steps


def test_steps_are_those_of_the_progress_where_there_is_one(
    tmp_path: Path, store: FailingStore, mlflow: FakeMlflow
) -> None:
    pod = Pod(tmp_path / "pod", store, mlflow)
    assert pod.steps() == {}
    pod.append({"step": 3, "metrics": {"val": 1.0}}, {"progress": {"step": 120, "total": 900}})
    pod.append({"step": 4, "metrics": {"val": 1.0}}, {"progress": {"step": 130, "total": 900}})
    assert pod.steps() == {"first": 120, "last": 130}
    again = Pod(tmp_path / "pod", store, mlflow)  # a restarted sidecar
    again.append({"progress": {"step": 140, "total": 900}})
    assert again.steps() == {"first": 120, "last": 140}
    text = store.get_bytes(KEYS.status("job-1", "train", 1, 1)) or b""
    assert LearnerStatus.from_json(text).steps == {"first": 120, "last": 140}


def test_steps_are_those_of_the_metrics_otherwise(tmp_path: Path, store: FailingStore, mlflow: FakeMlflow) -> None:
    pod = Pod(tmp_path / "pod", store, mlflow)
    pod.log_metric(0)  # what MLflow's client says when the program names no step
    recorder = pod.sidecar.recorder
    recorder.record(recorder.metrics_entries(1.0, 99_999, {"cpu": 1.0}, "system", prefix=False))
    pod.log_metric(70_000, model={"model_id": "m-1"})
    assert pod.steps() == {}
    pod.log_metric(50)
    pod.append({"step": 51, "metrics": {"loss": 1.0}})
    pod.log_metric(20)
    assert pod.steps() == {"first": 50, "last": 51}


OLDER = {
    "t/jobs/job-1/checkpoints/step-7-a1/state.pt": True,
    "t/jobs/job-1/checkpoints/step-7-a2-l3-v2/deep/state.pt": True,
    "t/jobs/job-1/checkpoints/step-7-a1-s3fa2c1d0/__0_0.distcp": True,
    "t/jobs/job-1/checkpoints/exp-a1-a3-l2/state.pt": False,
    "t/jobs/job-1/checkpoints/step-7-a3-s3fa2c1d0/__0_0.distcp": False,
    "t/jobs/job-1/checkpoints/step-7-a4/state.pt": False,
    "t/jobs/job-1/checkpoints/other/state.pt": False,
    "t/jobs/job-1/attempts/train-2/learner-1/artifacts/1.data": True,
    "t/jobs/job-1/attempts/train-3/learner-1/artifacts/1.data": False,
    "t/jobs/job-1/attempts/evaluate-1/learner-1/artifacts/1.data": False,
    "t/jobs/job-1/results/learner-1/model.bin": True,
    "t/jobs/job-1/results/learner-2/model.bin": False,
    "t/jobs/job-1/results/evaluate/model.bin": False,
}


@pytest.mark.parametrize("key", OLDER)
def test_unfinished_uploads_of_earlier_attempts_are_known_by_their_keys(key: str) -> None:
    assert is_older(replace(CONFIG, attempt=3), key) == OLDER[key]


@pytest.mark.parametrize(("attempt", "restarted", "cleans"), [(1, False, False), (2, False, True), (2, True, False)])
def test_they_are_given_up_once_by_the_first_sidecar_of_a_later_attempt(
    tmp_path: Path, store: FailingStore, mlflow: FakeMlflow, attempt: int, restarted: bool, cleans: bool
) -> None:
    asked: list[str] = []

    def abort_uploads(prefix: str, stale: Any) -> int:
        asked.append(prefix)
        raise StorageError("refused", "this server does not list uploads")

    store.abort_uploads = abort_uploads  # type: ignore[method-assign]
    pod = Pod(tmp_path / "pod", store, mlflow, replace(CONFIG, attempt=attempt))
    if restarted:
        pod.sidecar.publish()
        pod = Pod(tmp_path / "pod", store, mlflow, replace(CONFIG, attempt=attempt))
    (pod.paths.checkpoints / "step-1").mkdir()
    (pod.paths.checkpoints / "step-1" / "COMPLETE").touch()
    pod.sidecar.poll_uploads()
    pod.sidecar.poll_uploads()
    assert asked == (["t/jobs/job-1/"] if cleans else [])
    assert store.get_bytes(KEYS.checkpoint_marker("job-1", f"step-1-a{attempt}"))
