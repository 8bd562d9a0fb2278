"""How much of a worker a program's late metrics and artifacts may take, and who hears of what they leave out."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
from folder_store import FolderStore
from learner.sidecar_fakes import RUN, FakeMlflow

from updraft.controller import replay as replaying
from updraft.controller.idempotency import ReplayRecord, replayed
from updraft.lifecycle.idempotency import IdempotencyKey
from updraft.lifecycle.membership import Membership
from updraft.tracking.replay import LIMITS, ReplayLimits, TimeBudget, replay
from updraft_learner.contract import Keys


@pytest.fixture
def mlflow() -> Iterator[FakeMlflow]:
    fake = FakeMlflow()
    yield fake
    fake.close()


@pytest.fixture
def settings(mlflow: FakeMlflow) -> Any:
    secret = SimpleNamespace(get_secret_value=lambda: "p")
    credentials = SimpleNamespace(mlflow=SimpleNamespace(username="u", password=secret))
    return SimpleNamespace(mlflow_uri=mlflow.uri, credentials=lambda: credentials)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def chunk(first: int, last: int) -> bytes:
    lines = (
        f'{{"n": {n}, "t": {n}, "source": "file", "step": {n}, "metrics": {{"loss": 1.0}}}}\n'
        for n in range(first, last + 1)
    )
    return "".join(lines).encode()


class Clock:
    """Each look at it takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def test_within_the_bounds_all_is_delivered(settings: Any, store: FolderStore, mlflow: FakeMlflow) -> None:
    store.put_bytes("m/00000007.jsonl", chunk(1, 3))
    store.put_bytes("m/00000008.jsonl", chunk(4, 5))
    for number in (1, 2):
        store.put_bytes(f"a/{number:08d}.data", b"plot")
        store.put_bytes(f"a/{number:08d}.json", b'{"owner": "run", "path": "plots/%d.txt"}' % number)
    store.put_bytes("a/00000003.data", b"half of one")
    done = replay(settings, store, RUN, "m", "a")
    assert (done.points, done.artifacts, done.left) == (5, 2, ())
    assert len(mlflow.artifacts) == 2
    assert replay(settings, store, RUN, "m", "nothing").points == 0


def test_of_more_than_the_limit_the_newest_chunks_are_fetched(
    settings: Any, store: FolderStore, mlflow: FakeMlflow
) -> None:
    for number in range(1, 5):
        store.put_bytes(f"m/{number:08d}.jsonl", chunk(number, number))
    limits = ReplayLimits(chunk_bytes=2 * len(chunk(1, 1)))
    done = replay(settings, store, RUN, "m", "a", limits=limits)
    assert [step for step, _ in mlflow.points("loss")] == [3, 4]
    assert done.points == 2
    assert done.left == ("2 older chunks of metrics at m: all together are larger than 144 bytes",)


def test_points_end_at_the_limit_and_the_rest_is_counted(settings: Any, store: FolderStore, mlflow: FakeMlflow) -> None:
    store.put_bytes("m/00000001.jsonl", chunk(1, 2500))
    limits = ReplayLimits(points=1500)
    done = replay(settings, store, RUN, "m", "a", limits=limits)
    assert (done.points, len(mlflow.points("loss"))) == (2000, 2000)  # whole requests of 1,000
    assert done.left == ("500 points at m: there are more than 1500 new points",)


def test_a_job_has_one_deadline_for_its_metrics_and_artifacts(
    settings: Any, store: FolderStore, mlflow: FakeMlflow
) -> None:
    store.put_bytes("m/00000001.jsonl", chunk(1, 5000))
    store.put_bytes("a/00000001.data", b"plot")
    store.put_bytes("a/00000001.json", b'{"owner": "run", "path": "plots/a.txt"}')
    done = replay(settings, store, RUN, "m", "a", TimeBudget(6, Clock()))
    assert 0 < done.points == len(mlflow.points("loss")) < 5000
    assert done.artifacts == 0
    assert done.left == (
        f"{5000 - done.points} points at m: it takes longer than 6 s",
        "1 artifacts at a: it takes longer than 6 s",
    )
    assert replay(settings, store, RUN, "m", "a", TimeBudget(0, Clock())).left[0].startswith("1 chunks of metrics at m")


class SlowStore(FolderStore):
    """Opening an object takes ten seconds."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.now = 0.0

    def open(self, key: str) -> BinaryIO:
        self.now += 10
        return super().open(key)


def test_with_a_slow_store_the_newest_chunks_arrive_and_the_rest_is_told(
    settings: Any, mlflow: FakeMlflow, tmp_path: Path
) -> None:
    store = SlowStore(tmp_path / "store")
    for number in range(1, 61):
        store.put_bytes(f"m/{number:08d}.jsonl", chunk(number, number))
    limits = ReplayLimits(copies=1)
    done = replay(settings, store, RUN, "m", "a", TimeBudget(300, lambda: store.now), limits=limits)
    assert [step for step, _ in mlflow.points("loss")] == list(range(46, 61))
    assert done.points == 15
    assert done.left == ("45 chunks of metrics at m: fetching them takes longer than half of the time there is",)


class MeetingStore(FolderStore):
    """An object opens once as many are asked for as are fetched at a time."""

    together = threading.Barrier(LIMITS.copies, timeout=10)

    def open(self, key: str) -> BinaryIO:
        self.together.wait()
        return super().open(key)


def test_chunks_are_fetched_side_by_side(settings: Any, mlflow: FakeMlflow, tmp_path: Path) -> None:
    store = MeetingStore(tmp_path / "store")
    for number in range(2 * LIMITS.copies):
        store.put_bytes(f"m/{number + 1:08d}.jsonl", chunk(number, number))
    assert replay(settings, store, RUN, "m", "a").points == 2 * LIMITS.copies


def test_a_run_with_points_without_end_is_not_read_into_memory(
    settings: Any, store: FolderStore, mlflow: FakeMlflow
) -> None:
    mlflow.metrics = [{"key": "loss", "value": 1.0, "step": step, "timestamp": 1} for step in range(100)]
    store.put_bytes("m/00000001.jsonl", chunk(200, 200))
    limits = ReplayLimits(history_points=14)  # five pages of three
    done = replay(settings, store, RUN, "m", "a", limits=limits)
    assert (done.points, len(mlflow.sent("metrics/get-history"))) == (0, 5)
    assert done.left == ("1 points at m: the run has more points than can be compared with",)


def test_a_run_with_many_metrics_of_few_points_is_compared_with(
    settings: Any, store: FolderStore, mlflow: FakeMlflow
) -> None:
    names = [f"gradients/layer{number}" for number in range(250)]
    mlflow.metrics = [{"key": name, "value": 1.0, "step": 1, "timestamp": 1} for name in names]
    metrics = ", ".join(f'"{name}": 2.0' for name in names)
    line = f'{{"n": 1, "t": 1, "source": "file", "step": 2, "metrics": {{{metrics}}}}}\n'
    store.put_bytes("m/00000001.jsonl", line.encode())
    done = replay(settings, store, RUN, "m", "a")
    assert (done.points, done.left) == (250, ())
    assert len(mlflow.points(names[-1])) == 2


def test_artifacts_that_are_too_large_are_passed_over_and_told(
    settings: Any, store: FolderStore, mlflow: FakeMlflow
) -> None:
    for number, size in enumerate((50, 70, 40), start=1):
        store.put_bytes(f"a/{number:08d}.data", b"x" * size)
        store.put_bytes(f"a/{number:08d}.json", b'{"owner": "run", "path": "p/%d"}' % number)
    store.put_bytes("a/00000004.data", b"x")
    store.put_bytes("a/00000004.json", b" " * (LIMITS.facts_bytes + 1))
    limits = ReplayLimits(artifact_bytes=100)
    done = replay(settings, store, RUN, "m", "a", limits=limits)
    assert (done.artifacts, sorted(map(len, mlflow.artifacts.values()))) == (2, [40, 50])
    assert done.left == ("2 artifacts at a: they are larger than 100 bytes or the disk",)


class Ledger:
    """What is asked of the ledger, for one attempt that has ended."""

    def __init__(self) -> None:
        self.done: dict[IdempotencyKey[ReplayRecord], ReplayRecord] = {}
        self.notes: list[str] = []
        attempt = SimpleNamespace(role="evaluate", number=2, ended_at=1, membership=Membership.first(1))
        self.attempts = SimpleNamespace(of_job=lambda job_id: [attempt])
        self.idempotency = SimpleNamespace(get=lambda job_id, key: self.done.get(key), record=self._record)
        self.jobs = SimpleNamespace(note=self._note)

    def _record(self, job_id: str, key: IdempotencyKey[ReplayRecord], value: ReplayRecord) -> None:
        self.done[key] = value

    def _note(self, job_id: str, reason: str, evidence: Mapping[str, Any] | None = None) -> None:
        self.notes.append(reason)


def test_what_was_not_delivered_is_in_the_jobs_history_once(
    settings: Any, store: FolderStore, mlflow: FakeMlflow
) -> None:
    metrics = Keys("default").metrics("job-1", "evaluate", 2, 1)
    store.put_bytes(f"{metrics}/00000001.jsonl", chunk(1, 2500))
    ledger = Ledger()
    services: Any = SimpleNamespace(settings=settings, ledger=ledger, store=store)
    job: Any = SimpleNamespace(id="job-1", tenant="default", mlflow_run_id=RUN)
    for _ in range(2):
        replaying.replay_metrics(services, job, ReplayLimits(points=1))
    left = f"1500 points at {metrics}: there are more than 1 new points"
    assert ledger.done == {replayed("evaluate", 2, 1): ReplayRecord(1000, 0, (left,))}
    assert ledger.notes == [f"attempt 2, learner 1 of evaluate: in the object store, but not in MLflow: {left}"]
