"""A full disk: the program goes on, the reason is told, and everything arrives once when there is room again."""

from __future__ import annotations

import errno
import http.client
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from learner.sidecar_fakes import (
    BEARER,
    CONFIG,
    RUN,
    TOKEN,
    FailingStore,
    FakeMlflow,
    FillingDisk,
    end_threads,
    make_paths,
    until,
)

from updraft_learner.contract import Keys, LearnerDone, LearnerStatus
from updraft_learner.pod import PodPaths
from updraft_learner.record import report
from updraft_learner.record.disk import PodDisk
from updraft_learner.sidecar.app import Sidecar

KEYS = Keys("t")
PLACE = ("job-1", "train", 1, 1)


@pytest.fixture
def disk() -> FillingDisk:
    """The sidecar's; the program's files and the store lie elsewhere."""
    return FillingDisk()


class Pod:
    def __init__(self, root: Path, mlflow: FakeMlflow, disk: PodDisk, **options: Any) -> None:
        self.paths = PodPaths(root) if root.exists() else make_paths(root)
        self.store = FailingStore(root.parent / "s3")
        self.sidecar = Sidecar(CONFIG, self.paths, self.store, mlflow.client(), TOKEN, disk=disk, **options)
        self.sidecar.start()

    def ask(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.sidecar.endpoint.port, timeout=20)
        connection.request(method, path, body, BEARER)
        response = connection.getresponse()
        answer = response.status, json.loads(response.read() or b"{}")
        connection.close()
        return answer

    def log_metric(self, step: int, name: str = "loss") -> tuple[int, dict[str, Any]]:
        body = {"run_id": RUN, "key": name, "value": step / 2, "timestamp": step, "step": step}
        return self.ask("POST", "/api/2.0/mlflow/runs/log-metric", json.dumps(body).encode())

    def append(self, step: int) -> None:
        with (self.paths.io / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"t": step, "step": step, "metrics": {"file": step}}) + "\n")

    def record(self) -> list[dict[str, Any]]:
        chunks = [self.store.get_bytes(item.key) or b"" for item in self.store.list(f"{KEYS.metrics(*PLACE)}/")]
        return [json.loads(line) for line in b"".join(chunks).splitlines()]

    def status(self) -> LearnerStatus:
        return LearnerStatus.from_json(self.store.get_bytes(KEYS.status(*PLACE)) or b"{}")

    def done(self) -> LearnerDone:
        return LearnerDone.from_json(self.store.get_bytes(KEYS.done(*PLACE)) or b"{}")


@pytest.fixture
def pod(tmp_path: Path, mlflow: FakeMlflow, disk: FillingDisk) -> Iterator[Pod]:
    made = Pod(tmp_path / "pod", mlflow, disk)
    yield made
    end_threads(made.sidecar)


def test_metrics_wait_in_memory_and_arrive_once_when_there_is_room(
    pod: Pod, mlflow: FakeMlflow, disk: FillingDisk
) -> None:
    pod.log_metric(0)
    disk.full = True
    for step in range(1, 30):
        assert pod.log_metric(step) == (200, {})
        pod.append(step)
    held = until("they are held", lambda: entries if (entries := pod.sidecar.journal.held_entries) == 58 else None)
    told = f"the pod's disk is full: {held} entries of the record wait in memory; remove files"
    until("it is told", lambda: any(told in text for text in pod.status().warnings))
    assert pod.status().disk_free_bytes is not None
    assert pod.sidecar.forwarder.pending >= held

    disk.full = False
    until("all arrive", lambda: len(mlflow.points("file")) == 29)
    pod.sidecar.drain()
    assert mlflow.points("loss") == [(step, step / 2) for step in range(30)]
    assert mlflow.points("file") == [(step, float(step)) for step in range(1, 30)]
    assert [entry["n"] for entry in pod.record()] == list(range(1, 60))
    assert (pod.done().metrics_pending, pod.done().warnings) == (0, ())


def test_what_no_memory_can_hold_is_refused_with_the_reason_until_there_is_room(
    tmp_path: Path, mlflow: FakeMlflow, disk: FillingDisk
) -> None:
    pod = Pod(tmp_path / "pod", mlflow, disk, held_limit_bytes=500)
    disk.full = True
    answers = [pod.log_metric(step) for step in range(12)]
    taken = [step for step, (status, _) in enumerate(answers) if status == 200]
    assert 2 < len(taken) < 12
    refusal = {"error_code": "RESOURCE_EXHAUSTED", "message": "the pod's disk is full"}
    assert all(answer in ((200, {}), (507, refusal)) for answer in answers)
    for step in range(12):
        pod.append(step)
    with pytest.raises(OSError, match="No space left"):
        pod.sidecar.tail.poll()
    disk.full = False
    pod.sidecar.drain()
    assert mlflow.points("loss") == [(step, step / 2) for step in taken]
    assert mlflow.points("file") == [(step, float(step)) for step in range(12)]  # the file had kept them
    assert [entry["n"] for entry in pod.record()] == list(range(1, len(taken) + 13))


def test_a_disk_that_stays_full_costs_the_record_nothing(pod: Pod, mlflow: FakeMlflow, disk: FillingDisk) -> None:
    pod.log_metric(0)
    until("the first point arrives", lambda: mlflow.points("loss"))
    disk.full = True
    for step in range(1, 5):
        pod.log_metric(step)
    checkpoint = pod.paths.checkpoints / "step-4"
    checkpoint.mkdir()
    (checkpoint / "w").write_bytes(b"w")
    (checkpoint / "COMPLETE").touch()
    (pod.paths.result / "model.bin").write_bytes(b"m")
    pod.sidecar.drain(mlflow_seconds=0.2)
    done = pod.done()
    assert [(entry["n"], entry["step"]) for entry in pod.record()] == [(step + 1, step) for step in range(5)]
    assert (done.metrics_pending, done.final_checkpoint, done.files) == (4, "step-4-a1", 3)  # replayed by the platform
    assert mlflow.points("loss") == [(0, 0.0)]


def test_state_that_cannot_be_saved_doubles_nothing_after_a_restart(
    tmp_path: Path, pod: Pod, mlflow: FakeMlflow, disk: FillingDisk
) -> None:
    for step in range(5):
        pod.log_metric(step)
    until("they are recorded", lambda: pod.sidecar.journal.end().offset)
    disk.full = True
    until("they arrive", lambda: len(mlflow.points("loss")) == 5)
    (pod.paths.result / "model.bin").write_bytes(b"m")
    pod.sidecar.poll_uploads()
    assert not any("Errno" in text for text in pod.sidecar.warnings.texts())
    pod.sidecar.endpoint.stop()
    end_threads(pod.sidecar)
    disk.full = False
    again = Pod(tmp_path / "pod", mlflow, disk)
    again.log_metric(5)
    again.sidecar.drain()
    assert mlflow.points("loss") == [(step, step / 2) for step in range(6)]
    assert again.done().metrics_pending == 0


def test_an_artifact_without_room_is_refused_and_leaves_nothing(
    pod: Pod, mlflow: FakeMlflow, disk: FillingDisk
) -> None:
    disk.full = True
    path = "/api/2.0/mlflow-artifacts/artifacts/7/run1/artifacts/a.bin"
    status, answer = pod.ask("PUT", path, b"x" * 100)
    assert (status, answer["message"]) == (507, "the pod's disk is full")
    assert list((pod.paths.private / "spool").iterdir()) == []
    disk.full = False
    assert pod.ask("PUT", path, b"y" * 100) == (200, {})
    pod.sidecar.drain()
    assert mlflow.artifacts == {"real/r1/a.bin": b"y" * 100}


class SmallDisk(PodDisk):
    def free_bytes(self, folder: Path) -> int:
        return 3_000_000


def test_a_disk_that_is_nearly_full_is_told_before_it_is(tmp_path: Path, mlflow: FakeMlflow) -> None:
    pod = Pod(tmp_path / "pod", mlflow, SmallDisk())
    pod.sidecar.publish()
    assert pod.sidecar.status().disk_free_bytes == 3_000_000
    assert pod.sidecar.warnings.texts()[0].startswith("the pod's disk has only 3.0 MB free; remove files")
    end_threads(pod.sidecar)


def test_a_log_that_cannot_be_written_ends_nothing() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    report.log("lost", Full())
