"""An attempt that is no longer the newest has no effect: nothing reaches the store or MLflow from its pod."""

from __future__ import annotations

import http.client
import io
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learner.sidecar_fakes import BEARER, CONFIG, RUN, TOKEN, FailingStore, FakeMlflow, make_paths, until

from updraft_learner.contract import Keys
from updraft_learner.mlflow_rest import ServerUnavailable
from updraft_learner.record.fenced import Fenced
from updraft_learner.sidecar.app import Sidecar
from updraft_learner.sidecar.fence import FRESH_SECONDS, Fence, FencedStore
from updraft_learner.store import StorageError

KEYS = Keys("t")
FENCE = KEYS.fence("job-1")
PLACE = ("job-1", "train", 1, 1)


@pytest.fixture
def store(tmp_path: Path) -> FailingStore:
    return FailingStore(tmp_path / "s3")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def put_fence(store: FailingStore, **numbers: int) -> None:
    store.put_bytes(FENCE, json.dumps(numbers).encode())
    store.written.clear()


def fence(store: FailingStore, clock: Clock, told: list[int] | None = None) -> Fence:
    return Fence(CONFIG, store, (told if told is not None else []).append, clock)


@pytest.mark.parametrize("numbers", [None, {"train": 1}, {"train": 0}, {"evaluate": 7}, {"train": 1, "evaluate": 2}])
def test_the_newest_attempt_of_its_role_may_act(store: FailingStore, numbers: dict[str, int] | None) -> None:
    if numbers is not None:
        put_fence(store, **numbers)
    fence(store, Clock()).check()


def test_an_older_attempt_is_told_once_and_never_acts_again(store: FailingStore) -> None:
    clock, told = Clock(), list[int]()
    wall = fence(store, clock, told)
    wall.check()
    put_fence(store, train=3)
    wall.check()  # the last reading is fresh
    clock.now += FRESH_SECONDS
    for _ in range(3):
        with pytest.raises(Fenced):
            wall.check()
        clock.now += 60
    store.delete(FENCE)
    with pytest.raises(Fenced):
        wall.check_before_sending()
    assert (told, wall.fenced) == ([3], True)


def test_the_fence_is_read_at_most_once_a_second(store: FailingStore) -> None:
    reads: list[str] = []
    store.fails = lambda operation, key: bool(operation == "get" and reads.append(key))
    clock = Clock()
    wall = fence(store, clock)
    for _ in range(10):
        wall.check()
    clock.now += FRESH_SECONDS
    wall.check()
    assert reads == [FENCE, FENCE]


@pytest.mark.parametrize("text", [b"", b"[1]", b'{"train": "two"}', b'{"train": null}', b"\xff"])
def test_a_fence_that_says_nothing_lets_nothing_out(store: FailingStore, text: bytes) -> None:
    store.put_bytes(FENCE, text)
    wall = fence(store, Clock())
    with pytest.raises(StorageError, match=r"fence\.json is unreadable"):
        wall.check()
    with pytest.raises(ServerUnavailable, match="does not say whether a newer attempt") as caught:
        wall.check_before_sending()
    assert not caught.value.ambiguous


def test_a_store_that_is_away_is_asked_again_only_after_a_while(store: FailingStore) -> None:
    reads: list[str] = []
    store.fails = lambda operation, key: operation == "get" and (reads.append(key), True)[1]
    clock = Clock()
    wall = fence(store, clock)
    for _ in range(5):
        with pytest.raises(StorageError, match="cannot be reached"):
            wall.check()
    assert len(reads) == 1
    store.fails = lambda *_: False
    clock.now += FRESH_SECONDS
    wall.check()


def test_everything_that_changes_the_store_is_checked(store: FailingStore) -> None:
    put_fence(store, train=2)
    fenced = FencedStore(store, fence(store, Clock()))
    for change in (
        lambda: fenced.put_bytes("a", b"1"),
        lambda: fenced.put_file("a", lambda: io.BytesIO(b"1")),
        lambda: fenced.delete(FENCE),
        lambda: fenced.abort_uploads("", lambda key: True),
    ):
        with pytest.raises(Fenced):
            change()
    assert [item.key for item in fenced.list("")] == [FENCE]
    assert fenced.get_bytes(FENCE) == fenced.open(FENCE).read() == b'{"train": 2}'


def test_a_large_file_stops_in_the_middle(store: FailingStore) -> None:
    clock = Clock()
    fenced = FencedStore(store, fence(store, clock))

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            clock.now += 1
            if self.tell():
                put_fence(store, train=2)
            return super().read(100)

    with pytest.raises(Fenced):
        fenced.put_file("large", lambda: Slow(b"x" * 1000))
    assert store.get_bytes("large") is None


class Pod:
    def __init__(self, root: Path, mlflow: FakeMlflow, store: FailingStore, attempt: int = 1) -> None:
        self.paths, self.store = make_paths(root), store
        self.sidecar = Sidecar(replace(CONFIG, attempt=attempt), self.paths, store, mlflow.client(), TOKEN)
        self.sidecar.start()

    def work(self, step: int) -> None:
        """What a program leaves of every kind."""
        (self.paths.result / "model.bin").write_bytes(b"x" * step)
        (self.paths.logs / "train.log").write_bytes(b"y" * step)
        checkpoint = self.paths.checkpoints / f"step-{step}"
        checkpoint.mkdir()
        (checkpoint / "w").write_bytes(b"z")
        (checkpoint / "COMPLETE").touch()
        with (self.paths.io / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "metrics": {"loss": 1.0}}) + "\n")
        self.ask("PUT", "/api/2.0/mlflow-artifacts/artifacts/7/run1/artifacts/a.txt", b"text")

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.sidecar.endpoint.port, timeout=10)
        connection.request(method, path, body, BEARER)
        response = connection.getresponse()
        answer = response.status, json.loads(response.read() or b"{}")
        connection.close()
        return answer


def test_a_twin_that_lives_on_behind_a_lost_node_has_no_effect(
    tmp_path: Path, mlflow: FakeMlflow, store: FailingStore
) -> None:
    first = Pod(tmp_path / "first", mlflow, store)
    first.work(1)
    until("the first point arrives", lambda: mlflow.points("loss") == [(1, 1.0)])
    until("the checkpoint is stored", lambda: store.get_bytes(KEYS.checkpoint_marker("job-1", "step-1-a1")))
    until("the artifact arrives", lambda: mlflow.artifacts)
    put_fence(store, train=2)
    until("the first attempt notices", lambda: first.sidecar.fence.fenced)
    before = {item.key: store.get_bytes(item.key) for item in store.list("")}
    calls = len([call for call in mlflow.calls if call[0] != "GET"])
    mlflow.artifacts.clear()

    first.work(2)
    first.sidecar.tail.poll()
    assert first.ask("POST", "/api/2.0/mlflow/logged-models", b'{"name": "m"}') == (
        403,
        {"error_code": "PERMISSION_DENIED", "message": "a newer attempt of this job runs"},
    )
    metric = json.dumps({"run_id": RUN, "key": "loss", "value": 2, "step": 9}).encode()
    assert first.ask("POST", "/api/2.0/mlflow/runs/log-metric", metric)[0] == 200  # its program need not know
    first.sidecar.drain()

    assert {item.key: store.get_bytes(item.key) for item in store.list("")} == before
    assert len([call for call in mlflow.calls if call[0] != "GET"]) == calls
    assert (first.paths.io / "stop").exists()
    assert KEYS.done(*PLACE) not in before
    assert first.sidecar.status().fenced


def test_the_newest_attempt_beside_a_twin_stores_everything(
    tmp_path: Path, mlflow: FakeMlflow, store: FailingStore
) -> None:
    put_fence(store, train=2)
    second = Pod(tmp_path / "second", mlflow, store, attempt=2)
    second.work(5)
    second.sidecar.drain()
    assert store.get_bytes(KEYS.done("job-1", "train", 2, 1))
    assert store.get_bytes(KEYS.checkpoint_marker("job-1", "step-5-a2"))
    assert (mlflow.points("loss"), list(mlflow.artifacts)) == ([(5, 1.0)], ["real/r1/a.txt"])


def test_a_fence_that_moves_during_the_last_round_ends_it(
    tmp_path: Path, mlflow: FakeMlflow, store: FailingStore
) -> None:
    pod = Pod(tmp_path / "pod", mlflow, store)
    until("it beats", lambda: store.get_bytes(KEYS.status(*PLACE)))
    pod.work(1)
    pod.sidecar.fence._clock = itertools.count(10**9, 10).__next__  # each look is a new one

    def behave(operation: str, key: str) -> bool:
        if operation == "put" and key.endswith("/train.log"):
            put_fence(store, train=2)
        return False

    store.fails = behave
    pod.sidecar.drain()
    assert store.get_bytes(KEYS.checkpoint_marker("job-1", "step-1-a1"))
    assert store.get_bytes(KEYS.done(*PLACE)) is None


def test_while_nobody_knows_whether_it_may_mlflow_gets_nothing_and_then_each_point_once(
    tmp_path: Path, mlflow: FakeMlflow, store: FailingStore
) -> None:
    store.fails = lambda operation, key: operation == "get"
    pod = Pod(tmp_path / "pod", mlflow, store)
    pod.work(1)
    until("it waits", lambda: any("kept and sent later" in text for text in pod.sidecar.warnings.texts()))
    assert not [call for call in mlflow.calls if call[0] != "GET"]
    assert not pod.sidecar.fence.fenced
    store.fails = lambda *_: False
    pod.sidecar.drain()
    assert (mlflow.points("loss"), list(mlflow.artifacts)) == ([(1, 1.0)], ["real/r1/a.txt"])
    assert store.get_bytes(KEYS.done(*PLACE))
