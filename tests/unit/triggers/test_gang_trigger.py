"""The trigger that watches a gang: one event per outcome, and each line of a log once."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from folder_store import FolderStore
from outside import Instead, Outside
from unit.operators.platform_fakes import FakeCluster
from unit.triggers.conftest import MANIFEST
from unit.triggers.trigger_helpers import JOB, START, Clock, services_in_use

from updraft.controller import prepare
from updraft.controller.attempts import EndSignal
from updraft.exceptions import UnavailableError
from updraft.kubernetes.objects import Launch
from updraft.kubernetes.pod_status import pod_facts
from updraft.ledger import Ledger
from updraft.lifecycle import State
from updraft.lifecycle.membership import Membership
from updraft.recovery import ends
from updraft.recovery.ends import EndKind
from updraft.recovery.facts import PodFacts
from updraft.settings import settings
from updraft.storage import objects
from updraft.triggers.admit import AdmitTrigger
from updraft.triggers.attempt_monitor import AttemptMonitor
from updraft.triggers.checkpoints import CheckpointTrigger
from updraft.triggers.gang import GangTrigger
from updraft.triggers.reaper import ReaperTrigger
from updraft_learner.prepare.documents import SourceRequest
from updraft_learner.store import StorageError


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
        self.went: list[PodFacts] = []
        self.secrets_asked_for: list[str] = []
        self.secret = True
        for learner in range(1, learners + 1):
            name = f"p-{learner}"
            self.cluster.pods[name] = {"metadata": {"name": name, "labels": {"updraft.dev/learner": str(learner)}}}
            self.cluster.set_status(name)

    def pods(self, key: Any) -> list[PodFacts]:
        self.looks += 1
        self.at_look.get(self.looks, lambda: None)()
        return [pod_facts(pod) for pod in self.cluster.pods.values()]

    def last_seen(self, key: Any) -> list[PodFacts]:
        return [*self.went, *(pod_facts(pod) for pod in self.cluster.pods.values())]

    async def lacks_secret(self, name: str) -> bool:
        self.secrets_asked_for.append(name)
        return not self.secret

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


def trigger() -> GangTrigger:
    return GangTrigger(conn_id="c", namespace="updraft-default", job_id=JOB, role="train")


class Log:
    """Structlog's manner of logging, into nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **more: None


def observation(watch: FakeWatch, learners: int | None = None, role: str = "train") -> AttemptMonitor:
    """Of the job's first attempt, which is opened at the first call."""
    services = services_in_use()
    book = services.ledger
    count = learners or len(watch.cluster.pods)
    attempt = book.attempts.current(JOB, role) or book.attempts.ensure(JOB, role, after=None, learners=count)
    launch = Launch("updraft-default", "default", JOB, role, 1, Membership.first(count))
    made: Any = watch
    return AttemptMonitor(services, made, book.jobs.get(JOB), launch, attempt, Log())


def change(book: Ledger, to: Callable[[Membership], Membership]) -> None:
    """Give the open attempt its next members."""
    attempt = book.attempts.current(JOB, "train")
    assert attempt is not None
    book.attempts.change_members(JOB, "train", attempt.number, to(attempt.membership))


def observe(watch: FakeWatch, learners: int | None = None) -> EndSignal:
    """Why the watching of an attempt ended."""
    return asyncio.run(asyncio.wait_for(observation(watch, learners).run(), 100))


# --- arguments ---

KEEP = {"latest": 2, "best": 1, "metric": "acc", "mode": "max"}


@pytest.mark.parametrize(
    "made",
    [
        AdmitTrigger(conn_id="c", job_id=JOB),
        trigger(),
        ReaperTrigger(conn_id="c"),
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
    def test_all_pods_ended(self) -> None:
        watch = FakeWatch(2)
        for name in watch.cluster.pods:
            watch.cluster.set_status(name, exit_code=0)
        ended = tuple(watch.pods("any"))
        assert observe(watch) == EndSignal(EndKind.ENDED, "all pods have ended", {1: [], 2: []}, ended)

    def test_one_failed_and_its_peer_still_runs(self) -> None:
        watch = FakeWatch(2)
        watch.cluster.set_status("p-2", exit_code=1)
        watch.logs = {"p-1": [(stamp(1), "working")], "p-2": [(stamp(1), "a"), (stamp(2), "ValueError: b")]}
        watch.endless = {"p-1"}
        event = observe(watch)
        assert (event.kind, event.reason) == ("failed", "learner 2: failed")
        assert event.tails == {1: ["working"], 2: ["a", "ValueError: b"]}
        # The peer's log did not end; what it had said is stored all the same.
        assert [
            line["line"] for line in objects.read_log("default", JOB, "train", 1, 1, store=services_in_use().store)
        ] == ["working"]

    def test_a_pod_that_its_node_refuses_wakes_the_task_at_once(self, quick: Clock) -> None:
        watch = FakeWatch(2)
        watch.cluster.pods["p-2"]["status"] = {"phase": "Failed", "reason": "OutOfcpu", "message": "no cpu left"}
        event = observe(watch)
        assert (event.kind, event.reason) == ("failed", "learner 2: OutOfcpu: no cpu left")
        assert quick.now < START + 10

    def test_a_failed_learner_may_store_before_the_attempt_ends(self, quick: Clock) -> None:
        watch = FakeWatch(1)
        watch.cluster.set_status("p-1", exit_code=1, phase="Running")
        assert observe(watch).kind == "failed"
        assert quick.now > START + 30

    def test_a_pod_is_missing_only_after_a_while(self, quick: Clock) -> None:
        watch = FakeWatch(1)
        event = observe(watch, 2)
        assert (event.kind, event.reason) == ("missing", "1 of 2 pods are gone")
        assert quick.now > START + ends.MISSING_SECONDS

    def test_a_watch_that_lost_the_cluster_says_nothing_about_pods(self, ledger: Ledger) -> None:
        watch = FakeWatch(1)
        watch.synced.clear()
        watch.cluster.set_status("p-1", exit_code=1)
        watch.at_look = {100: lambda: ledger.requests.make(JOB, "cancel", "bob") and None}
        assert observe(watch, 2).reason == "cancelled by bob"

    def test_an_image_that_cannot_be_pulled(self, quick: Clock) -> None:
        watch = FakeWatch(1)
        waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
        watch.cluster.set_status(
            "p-1", phase="Pending", containerStatuses=[{"name": "base", "state": waiting}], initContainerStatuses=[]
        )
        event = observe(watch)
        assert (event.kind, event.reason) == ("blocked", "learner 1: ImagePullBackOff: no such image")
        assert START + ends.BLOCKED_SECONDS < quick.now < START + 60

    def test_pods_that_never_start(self, quick: Clock) -> None:
        watch = FakeWatch(1)
        condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
        watch.cluster.pods["p-1"]["status"] = {"phase": "Pending", "conditions": [condition]}
        event = observe(watch)
        assert (event.kind, event.reason) == ("late", "learner 1: 0/1 nodes are available")
        assert quick.now > START + settings().deploy_timeout_seconds

    @pytest.mark.parametrize("deleted", [True, False])
    def test_pods_whose_secret_somebody_deleted(self, quick: Clock, ledger: Ledger, deleted: bool) -> None:
        watch = FakeWatch(1)
        watch.secret = not deleted
        watch.cluster.pods["p-1"]["spec"] = {"nodeName": "n1"}
        waiting = {"name": "updraft-sidecar", "state": {"waiting": {"reason": "PodInitializing"}}}
        watch.cluster.pods["p-1"]["status"] = {"phase": "Pending", "initContainerStatuses": [waiting]}
        watch.at_look = {200: lambda: ledger.requests.make(JOB, "cancel", "bob") and None}
        event = observe(watch)
        name = f"{JOB}-t1"
        if deleted:
            assert (event.kind, watch.secrets_asked_for) == ("no secret", [name])
            assert event.reason == f"secret {name} was deleted before its learners began"
            assert START + ends.BLOCKED_SECONDS < quick.now < START + 60
        else:  # a large image: it is asked seldom
            assert event.kind == "cancelled"
            assert 1 <= len(watch.secrets_asked_for) <= (quick.now - START) / ends.BLOCKED_SECONDS

    def test_pods_are_handed_on_as_they_were_last_seen(self, quick: Clock) -> None:
        """By the time that the attempt is judged they may be gone."""
        watch = FakeWatch(2)
        watch.cluster.set_status("p-2", exit_code=1)
        watch.went = [pod_facts(watch.cluster.pods.pop("p-1"))]
        event = observe(watch, 2)
        assert event.kind == "failed"
        assert [(pod.learner, pod.main.exit_code) for pod in event.pods] == [(1, None), (2, 1)]

    def test_the_time_is_used_up(self, quick: Clock, ledger: Ledger) -> None:
        from updraft.ledger.tables import jobs

        with ledger._engine.begin() as connection:
            connection.execute(jobs.update().values(manifest={**MANIFEST, "budget": {"max_runtime": "40s"}}))
        watch = FakeWatch(1)
        seen = observe(watch)
        assert (seen.kind, seen.reason) == ("deadline", "budget.max_runtime is used up")
        assert START + 39 < quick.now < START + 60

    def test_waiting_for_room_uses_up_no_time(self, quick: Clock, ledger: Ledger) -> None:
        from updraft.ledger.tables import jobs

        with ledger._engine.begin() as connection:
            connection.execute(jobs.update().values(manifest={**MANIFEST, "budget": {"max_runtime": "40s"}}))
        watch = FakeWatch(1)
        condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
        watch.cluster.pods["p-1"]["status"] = {"phase": "Pending", "conditions": [condition]}
        roomy_at: list[float] = []
        watch.at_look = {200: lambda: roomy_at.append(quick.now) or watch.cluster.set_status("p-1")}
        seen = observe(watch)
        assert (seen.kind, seen.reason) == ("deadline", "budget.max_runtime is used up")
        assert roomy_at[0] > START + 50
        assert roomy_at[0] + 38 < quick.now < roomy_at[0] + 60

    def test_a_learner_that_leaves_is_neither_a_failure_nor_missing(self, ledger: Ledger) -> None:
        watch = FakeWatch(3)

        def ends(exit_code: int, *names: str) -> None:
            for name in names:
                watch.cluster.set_status(name, exit_code=exit_code)

        observed = observation(watch)
        watch.at_look = {
            5: lambda: change(ledger, lambda members: members.resized(members.size - 1, [2])),
            60: lambda: ends(1, "p-2"),
            120: lambda: watch.cluster.pods.pop("p-2") and None,
            180: lambda: ends(0, "p-1", "p-3"),
        }
        seen = asyncio.run(asyncio.wait_for(observed.run(), 100))
        assert seen.kind == "ended"
        assert watch.looks >= 180

    def test_a_learner_that_joins_is_waited_for(self, ledger: Ledger, quick: Clock) -> None:
        watch = FakeWatch(3)
        newcomer = watch.cluster.pods.pop("p-3")
        observed = observation(watch)

        def ends() -> None:
            for name in watch.cluster.pods:
                watch.cluster.set_status(name, exit_code=0)

        watch.at_look = {
            5: lambda: change(ledger, lambda members: members.resized(3)),
            10: lambda: watch.cluster.pods.update({"p-3": newcomer}),
            60: ends,
        }
        seen = asyncio.run(asyncio.wait_for(observed.run(), 100))
        assert (seen.kind, watch.looks >= 60) == ("ended", True)
        assert [pod.learner for pod in seen.pods] == [1, 2, 3]

    def test_a_learner_that_never_comes_is_missing_after_a_while(self, ledger: Ledger, quick: Clock) -> None:
        watch = FakeWatch(1)
        watch.at_look = {5: lambda: change(ledger, lambda members: members.resized(2))}
        seen = observe(watch)
        assert (seen.kind, seen.reason) == ("missing", "1 of 2 pods are gone")
        assert quick.now > START + ends.MISSING_SECONDS

    def test_a_halt_waits_until_all_learners_have_saved_and_left(self, ledger: Ledger, store: FolderStore) -> None:
        of_two(ledger)
        watch = FakeWatch(2)
        watch.at_look = {
            5: lambda: ledger.requests.make(JOB, "halt", "bob") and None,
            20: lambda: watch.cluster.set_status("p-1", exit_code=75),
            60: lambda: watch.cluster.set_status("p-2", exit_code=75),
        }
        assert observe(watch).kind == "ended"
        assert watch.looks >= 60
        assert [item.key for item in store.list("") if item.key.endswith("/stop")] == [
            f"default/jobs/{JOB}/attempts/train-1/learner-{n}/stop" for n in (1, 2)
        ]

    def test_a_halt_does_not_wait_for_ever(self, ledger: Ledger, quick: Clock) -> None:
        watch = FakeWatch(1)
        watch.at_look = {5: lambda: ledger.requests.make(JOB, "halt", "bob") and None}
        assert observe(watch).kind == "halted"
        assert quick.now > START + 120

    @pytest.mark.parametrize("disruption", [None, "EvictionByEvictionAPI", "DeletionByTaintManager"])
    def test_a_pod_that_is_removed_and_whose_end_nobody_tells(self, quick: Clock, disruption: str | None) -> None:
        """Its node's runtime has lost the program's end, or the node is gone: the first may store until then."""
        watch = FakeWatch(1)
        watch.cluster.set_status("p-1", phase="Running")
        watch.cluster.pods["p-1"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        conditions = [{"type": "DisruptionTarget", "status": "True", "reason": disruption}] if disruption else []
        watch.cluster.pods["p-1"]["status"]["conditions"] = conditions
        seen = observe(watch)
        assert (seen.kind, seen.reason) == ("failed", "learner 1: its node does not tell how its program ends")
        node_lost = disruption == "DeletionByTaintManager"
        patience = settings().node_lost_seconds if node_lost else settings().store_grace_seconds
        assert START + patience < quick.now < START + patience + 60

    @pytest.mark.parametrize("removed", [True, False], ids=["removed", "failed"])
    def test_the_pod_that_prepares_data_is_waited_for_as_long_as_it_may_store(
        self, ledger: Ledger, quick: Clock, removed: bool
    ) -> None:
        requests = [
            SourceRequest("data-0", "s3://b/a.zip", "s3", 4_000_000_000, unpack=True),
            SourceRequest("data-1", "s3://b/a", "s3", 9_000_000_000),
        ]
        prepare.record(services_in_use(), ledger.jobs.get(JOB), prepare.PreparePlan({}, tuple(requests)))
        watch = FakeWatch(1)
        if removed:
            watch.cluster.set_status("p-1", phase="Running")
            watch.cluster.pods["p-1"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        else:  # its sidecar goes on
            watch.cluster.set_status("p-1", exit_code=1, phase="Running")
            running = [{"name": "updraft-sidecar", "state": {"running": {}}}]
            watch.cluster.pods["p-1"]["status"]["initContainerStatuses"] = running
        seen = asyncio.run(asyncio.wait_for(observation(watch, role="prepare").run(), 100))
        assert seen.kind == "failed"
        assert START + 200 < quick.now < START + 260  # 4 GB at 20 MB a second; 90 for any other pod

    def test_a_pod_that_was_there_and_is_gone_is_missed_soon(self, quick: Clock) -> None:
        watch = FakeWatch(1)
        watch.at_look = {5: lambda: watch.cluster.pods.clear()}
        seen = observe(watch)
        assert (seen.kind, seen.reason) == ("missing", "1 of 1 pods are gone")
        assert quick.now < START + ends.MISSING_SECONDS

    def test_a_cancel_request_ends_it_although_the_log_goes_on(self, ledger: Ledger, outside: Outside) -> None:
        watch = FakeWatch(1)
        watch.endless, watch.logs = {"p-1"}, {"p-1": [(stamp(1), "epoch 1")]}
        watch.at_look = {20: lambda: ledger.requests.make(JOB, "cancel", "bob") and None}
        outside.timing = replace(outside.timing, log_end_seconds=3600.0)
        event = observe(watch)
        assert event == EndSignal(EndKind.CANCELLED, "cancelled by bob", {1: ["epoch 1"]}, tuple(watch.pods("any")))
        assert [
            line["line"] for line in objects.read_log("default", JOB, "train", 1, 1, store=services_in_use().store)
        ] == ["epoch 1"]

    def test_a_ledger_that_is_away_does_not_end_a_healthy_job(self, ledger: Ledger, outside: Outside) -> None:
        watch = FakeWatch(1)
        watching = observation(watch)

        def away(job_id: str) -> Any:
            raise UnavailableError("the ledger cannot be used")

        def back() -> None:
            outside.ledger = ledger
            watch.cluster.set_status("p-1", exit_code=0)

        outside.ledger = Instead(ledger, jobs=Instead(ledger.jobs, get=away))
        watch.at_look = {20: back}
        assert asyncio.run(asyncio.wait_for(watching.run(), 30)).kind == "ended"

    def test_a_store_that_is_away_at_the_start_costs_no_line(self, outside: Outside, store: FolderStore) -> None:
        watch, failures = FakeWatch(1), [StorageError("unreachable", "the store cannot be reached")] * 3

        def listed(prefix: str) -> Any:
            if failures:
                raise failures.pop()
            return store.list(prefix)

        outside.store = Instead(store, list=listed)
        watch.logs = {"p-1": [(stamp(n), f"line {n}") for n in range(5)]}
        watch.cluster.set_status("p-1", exit_code=0)
        assert observe(watch).tails == {1: [f"line {n}" for n in range(5)]}
        assert len(objects.read_log("default", JOB, "train", 1, 1, store=services_in_use().store)) == 5

    def test_a_trigger_that_is_started_anew_goes_on_without_doubling_a_line(self) -> None:
        watch = FakeWatch(1)
        watch.endless = {"p-1"}
        watch.logs = {"p-1": [(stamp(n), f"line {n}") for n in range(3)]}

        async def cancelled_after(lines: int) -> None:
            first = observation(watch)
            running = asyncio.create_task(first.run())
            while len(first._followers.tails.get(1, ())) < lines:
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
        event = observe(watch)
        expected = ["line 0", "line 1", "line 2", "same moment", "line 3", "the end"]
        assert event.tails == {1: expected}
        recorded = objects.read_log("default", JOB, "train", 1, 1, store=services_in_use().store)
        assert [(line["n"], line["line"]) for line in recorded] == list(enumerate(expected, 1))

    def test_each_learners_log_has_its_rate_and_all_have_one_together(self) -> None:
        assert observation(FakeWatch(1))._followers._shared is observation(FakeWatch(1))._followers._shared is not None

    def test_the_state_goes_forward_only(self, ledger: Ledger) -> None:
        ledger.jobs.move(JOB, State.QUEUED, "waiting")
        ledger.jobs.move(JOB, State.DEPLOYING, "admitted")
        watch = FakeWatch(1)
        pod = watch.cluster.pods["p-1"]
        running = pod["status"]
        pod["status"] = {"phase": "Pending"}
        watch.at_look = {
            5: lambda: pod.update(status=running),
            10: lambda: pod.update(status={"phase": "Pending"}),
            15: lambda: watch.cluster.set_status("p-1", exit_code=0),
        }
        observe(watch)
        states = [t.to_state for t in ledger.jobs.transitions(JOB)]
        shown = [s for n, s in enumerate(states) if n == 0 or s != states[n - 1]]
        assert shown == [State.PENDING, State.QUEUED, State.DEPLOYING, State.PROCESSING, State.STORING]


def of_two(ledger: Ledger) -> None:
    from updraft.ledger.tables import jobs

    with ledger._engine.begin() as connection:
        connection.execute(jobs.update().values(manifest={**MANIFEST, "resources": {"learners": 2}}))


def stamp(second: int) -> str:
    return f"2026-01-01T00:00:{second:02d}.000000001Z"
