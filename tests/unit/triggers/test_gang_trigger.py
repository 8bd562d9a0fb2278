"""The trigger that watches a gang: one event per outcome, and each line of a log once."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from unit.operators.platform_fakes import FakeCluster
from unit.triggers.trigger_helpers import JOB, START, Clock, events

from updraft.exceptions import UnavailableError
from updraft.kubernetes.watch import launch_key
from updraft.ledger import Ledger
from updraft.lifecycle import State
from updraft.recovery.facts import PodFacts, pod_facts
from updraft.storage import objects
from updraft.triggers import gang
from updraft.triggers.admit import AdmitTrigger
from updraft.triggers.checkpoints import CheckpointTrigger
from updraft.triggers.gang import GangTrigger, tails_of


class FakeWatch:
    """A PodWatch whose pods a test sets, and a log API that gives whole logs."""

    def __init__(self, learners: int) -> None:
        self.synced = asyncio.Event()
        self.synced.set()
        self.cluster = FakeCluster()
        self.logs: dict[str, list[tuple[str, str]]] = {}
        self.endless: set[str] = set()  # pods whose log stream does not end
        self.looks = 0
        self.at_look: dict[int, Callable[[], None]] = {}
        self.api = SimpleNamespace(call_api=self._log)
        for learner in range(1, learners + 1):
            name = f"p-{learner}"
            self.cluster.pods[name] = {"metadata": {"name": name, "labels": {"updraft.dev/learner": str(learner)}}}
            self.cluster.set_status(name)

    def pods(self, key: Any) -> list[PodFacts]:
        self.looks += 1
        self.at_look.get(self.looks, lambda: None)()
        return [pod_facts(pod) for pod in self.cluster.pods.values()]

    def subscribe(self, key: Any) -> asyncio.Event:
        return asyncio.Event()

    def unsubscribe(self, key: Any, woken: asyncio.Event) -> None: ...

    async def _log(self, path: str, method: str, *, query_params: list[tuple[str, str]], **_: Any) -> Any:
        pod, since = path.split("/")[-2], dict(query_params).get("sinceTime", "")[:19]
        lines = [f"{t} {text}\n".encode() for t, text in self.logs.get(pod, ()) if t[:19] >= since]
        watch = self

        class Content:
            async def iter_any(self) -> AsyncIterator[bytes]:
                for line in lines:
                    yield line
                if pod in watch.endless:
                    await asyncio.Event().wait()

        @asynccontextmanager
        async def response() -> AsyncIterator[None]:
            yield

        made: Any = response()
        made.status, made.content = 200, Content()
        return made


def trigger(learners: int = 2, **changes: Any) -> GangTrigger:
    arguments: dict[str, Any] = {
        "conn_id": "c",
        "namespace": "updraft-default",
        "tenant": "default",
        "job_id": JOB,
        "role": "train",
        "attempt": 1,
        "learners": learners,
        "deploy_by": START + 600,
        "deadline": None,
        "store_seconds": 300.0,
    }
    return GangTrigger(**{**arguments, **changes})


def observe(watch: FakeWatch, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> dict[str, Any]:
    """The one event of a gang trigger."""

    @asynccontextmanager
    async def shared(conn_id: str, namespace: str) -> AsyncIterator[FakeWatch]:
        yield watch

    monkeypatch.setattr(gang, "shared_watch", shared)
    learners = changes.pop("learners", len(watch.cluster.pods))
    seen = asyncio.run(asyncio.wait_for(events(trigger(learners, **changes)), 30))
    assert len(seen) == 1
    return seen[0]


# --- arguments ---

KEEP = {"latest": 2, "best": 1, "metric": "acc", "mode": "max"}


@pytest.mark.parametrize(
    "made",
    [
        AdmitTrigger(conn_id="c", job_id=JOB),
        trigger(3, deadline=5.0),
        CheckpointTrigger(job_id=JOB, dag_id="d", run_id="r", train_task="train", keep=KEEP),
        CheckpointTrigger(job_id=JOB, dag_id="d", run_id="r", train_task="train", keep=None),
    ],
)
def test_a_trigger_survives_its_serialisation(made: Any) -> None:
    import json

    path, arguments = made.serialize()
    module, _, name = path.rpartition(".")
    again = getattr(importlib.import_module(module), name)(**json.loads(json.dumps(arguments)))
    assert again.serialize() == made.serialize()


# --- the gang ---


@pytest.mark.usefixtures("ledger", "store", "quick")
class TestGang:
    def test_all_pods_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        watch = FakeWatch(2)
        for name in watch.cluster.pods:
            watch.cluster.set_status(name, exit_code=0)
        assert observe(watch, monkeypatch) == {
            "kind": "ended",
            "reason": "all pods have ended",
            "tails": {"1": [], "2": []},
        }

    def test_one_failed_and_its_peer_still_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        watch = FakeWatch(2)
        watch.cluster.set_status("p-2", exit_code=1)
        watch.logs = {"p-1": [(stamp(1), "working")], "p-2": [(stamp(1), "a"), (stamp(2), "ValueError: b")]}
        watch.endless = {"p-1"}
        event = observe(watch, monkeypatch)
        assert (event["kind"], event["reason"]) == ("failed", "learner 2 failed")
        assert tails_of(event) == {1: ["working"], 2: ["a", "ValueError: b"]}
        # The peer's log did not end; what it had said is stored all the same.
        assert [line["line"] for line in objects.read_log("default", JOB, "train", 1, 1)] == ["working"]

    def test_a_pod_that_its_node_refuses_wakes_the_task_at_once(
        self, monkeypatch: pytest.MonkeyPatch, quick: Clock
    ) -> None:
        watch = FakeWatch(2)
        watch.cluster.pods["p-2"]["status"] = {"phase": "Failed", "reason": "OutOfcpu", "message": "no cpu left"}
        event = observe(watch, monkeypatch)
        assert (event["kind"], event["reason"]) == ("failed", "learner 2: OutOfcpu: no cpu left")
        assert quick.now < START + 10

    def test_a_failed_learner_may_store_before_the_attempt_ends(
        self, monkeypatch: pytest.MonkeyPatch, quick: Clock
    ) -> None:
        watch = FakeWatch(1)
        watch.cluster.set_status("p-1", exit_code=1, phase="Running")
        assert observe(watch, monkeypatch, store_seconds=30.0)["kind"] == "failed"
        assert quick.now > START + 30

    def test_a_pod_is_missing_only_after_a_while(self, monkeypatch: pytest.MonkeyPatch, quick: Clock) -> None:
        watch = FakeWatch(1)
        event = observe(watch, monkeypatch, learners=2)
        assert (event["kind"], event["reason"]) == ("missing", "1 pods are gone")
        assert quick.now > START + gang.MISSING_SECONDS

    def test_a_watch_that_lost_the_cluster_says_nothing_about_pods(
        self, monkeypatch: pytest.MonkeyPatch, ledger: Ledger
    ) -> None:
        watch = FakeWatch(1)
        watch.synced.clear()
        watch.cluster.set_status("p-1", exit_code=1)
        watch.at_look = {100: lambda: ledger.request(JOB, "cancel", "bob") and None}
        assert observe(watch, monkeypatch, learners=2)["reason"] == "cancelled by bob"

    def test_an_image_that_cannot_be_pulled(self, monkeypatch: pytest.MonkeyPatch, quick: Clock) -> None:
        watch = FakeWatch(1)
        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
        watch.cluster.set_status(
            "p-1", phase="Pending", containerStatuses=[{"name": "base", "state": waiting}], initContainerStatuses=[]
        )
        event = observe(watch, monkeypatch)
        assert (event["kind"], event["reason"]) == ("blocked", "learner 1: ImagePullBackOff: no such image")
        assert START + gang.BLOCKED_SECONDS < quick.now < START + 60

    def test_pods_that_never_start(self, monkeypatch: pytest.MonkeyPatch, quick: Clock) -> None:
        watch = FakeWatch(1)
        condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
        watch.cluster.pods["p-1"]["status"] = {"phase": "Pending", "conditions": [condition]}
        event = observe(watch, monkeypatch)
        assert (event["kind"], event["reason"]) == ("blocked", "learner 1: 0/1 nodes are available")
        assert quick.now > START + 600

    def test_the_time_is_used_up(self, monkeypatch: pytest.MonkeyPatch, quick: Clock) -> None:
        event = observe(FakeWatch(1), monkeypatch, deadline=START + 40)
        assert (event["kind"], event["reason"]) == ("deadline", "budget.max_runtime is used up")
        assert START + 40 < quick.now < START + 60

    def test_a_cancel_request_ends_it_although_the_log_goes_on(
        self, monkeypatch: pytest.MonkeyPatch, ledger: Ledger
    ) -> None:
        watch = FakeWatch(1)
        watch.endless, watch.logs = {"p-1"}, {"p-1": [(stamp(1), "epoch 1")]}
        watch.at_look = {20: lambda: ledger.request(JOB, "cancel", "bob") and None}
        monkeypatch.setattr(gang, "LOG_END_SECONDS", 3600.0)
        event = observe(watch, monkeypatch)
        assert event == {"kind": "cancelled", "reason": "cancelled by bob", "tails": {"1": ["epoch 1"]}}
        assert [line["line"] for line in objects.read_log("default", JOB, "train", 1, 1)] == ["epoch 1"]

    def test_a_ledger_that_is_away_does_not_end_a_healthy_job(
        self, monkeypatch: pytest.MonkeyPatch, ledger: Ledger
    ) -> None:
        watch, real = FakeWatch(1), ledger.job

        def away(job_id: str) -> Any:
            raise UnavailableError("the ledger cannot be used")

        def back() -> None:
            monkeypatch.setattr(ledger, "job", real)
            watch.cluster.set_status("p-1", exit_code=0)

        monkeypatch.setattr(ledger, "job", away)
        watch.at_look = {20: back}
        assert observe(watch, monkeypatch)["kind"] == "ended"

    def test_a_store_that_is_away_at_the_start_costs_no_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        watch, real, calls = FakeWatch(1), objects.LogBook.open, []

        def open_book(*place: Any) -> Any:
            calls.append(place)
            if len(calls) < 4:
                raise UnavailableError("the store cannot be reached")
            return real(*place)

        monkeypatch.setattr(objects.LogBook, "open", open_book)
        watch.logs = {"p-1": [(stamp(n), f"line {n}") for n in range(5)]}
        watch.cluster.set_status("p-1", exit_code=0)
        assert observe(watch, monkeypatch)["tails"] == {"1": [f"line {n}" for n in range(5)]}
        assert len(objects.read_log("default", JOB, "train", 1, 1)) == 5

    def test_a_trigger_that_is_started_anew_goes_on_without_doubling_a_line(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        watch = FakeWatch(1)
        watch.endless = {"p-1"}
        watch.logs = {"p-1": [(stamp(n), f"line {n}") for n in range(3)]}

        @asynccontextmanager
        async def shared(conn_id: str, namespace: str) -> AsyncIterator[FakeWatch]:
            yield watch

        monkeypatch.setattr(gang, "shared_watch", shared)

        async def cancelled_after(lines: int) -> None:
            first = trigger(1)
            running = asyncio.create_task(events(first))
            while len(first._tails.get(1, ())) < lines:
                await asyncio.sleep(0.005)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

        asyncio.run(asyncio.wait_for(cancelled_after(3), 20))
        watch.logs["p-1"] += [(stamp(2), "same moment"), (stamp(3), "line 3")]
        asyncio.run(asyncio.wait_for(cancelled_after(5), 20))
        watch.logs["p-1"].append((stamp(4), "the end"))
        watch.endless.clear()
        watch.cluster.set_status("p-1", exit_code=0)
        event = observe(watch, monkeypatch)
        expected = ["line 0", "line 1", "line 2", "same moment", "line 3", "the end"]
        assert event["tails"] == {"1": expected}
        recorded = objects.read_log("default", JOB, "train", 1, 1)
        assert [(line["n"], line["line"]) for line in recorded] == list(enumerate(expected, 1))

    def test_the_state_goes_forward_only(self, monkeypatch: pytest.MonkeyPatch, ledger: Ledger) -> None:
        ledger.move(JOB, State.QUEUED, "waiting")
        ledger.move(JOB, State.DEPLOYING, "admitted")
        watch = FakeWatch(1)
        pod = watch.cluster.pods["p-1"]
        running = pod["status"]
        pod["status"] = {"phase": "Pending"}
        watch.at_look = {
            5: lambda: pod.update(status=running),
            10: lambda: pod.update(status={"phase": "Pending"}),
            15: lambda: watch.cluster.set_status("p-1", exit_code=0),
        }
        observe(watch, monkeypatch)
        states = [t.to_state for t in ledger.transitions(JOB)]
        shown = [s for n, s in enumerate(states) if n == 0 or s != states[n - 1]]
        assert shown == [State.PENDING, State.QUEUED, State.DEPLOYING, State.PROCESSING, State.STORING]


def test_the_watch_is_asked_for_this_launch_only() -> None:
    assert launch_key(trigger().launch) == (JOB, "train", "1")


def stamp(second: int) -> str:
    return f"2026-01-01T00:00:{second:02d}.000000001Z"
