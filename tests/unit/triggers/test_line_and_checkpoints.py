"""The triggers that wait in the queue and that watch checkpoints: one event per outcome."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from folder_store import FolderStore
from kubernetes.client.exceptions import ApiException
from outside import Instead, Outside
from unit.operators.platform_fakes import FakeCluster, store_checkpoint
from unit.triggers.trigger_helpers import JOB, events, services_in_use

from updraft.allocation import GangRequest
from updraft.controller import queueing
from updraft.exceptions import UnavailableError
from updraft.ledger import AttemptClosure, Ledger, NewJob
from updraft.lifecycle import Evidence, State, Verdict
from updraft.storage import objects
from updraft.triggers.admit import AdmitTrigger
from updraft.triggers.checkpoints import CheckpointTrigger, follow_checkpoints
from updraft_learner.store import StorageError

KEEP = {"latest": 2, "best": 1, "metric": "acc", "mode": "max"}


# --- the line ---


def enqueue(ledger: Ledger, job_id: str = JOB, cpus: float = 1.0) -> None:
    job = ledger.jobs.get(job_id)
    ledger.queue.enqueue(job_id, GangRequest(job_id, 1, cpus, 100, 0, None, job.submitted_at))
    ledger.jobs.move(job_id, State.QUEUED, "waiting")


def nodes(cluster: FakeCluster) -> list[dict[str, Any]]:
    return list(FakeCluster._plain(cluster.list_node())["items"])


def admitted(cluster: FakeCluster, outside: Outside, job_id: str = JOB) -> list[dict[str, Any]]:
    async def nodes_of(conn_id: str) -> list[dict[str, Any]]:
        try:
            return nodes(cluster)
        except ApiException as exc:
            raise UnavailableError(f"the cluster answered {exc.status}") from exc

    outside.list_nodes = nodes_of  # type: ignore[method-assign,assignment]
    return asyncio.run(asyncio.wait_for(events(AdmitTrigger(conn_id="c", job_id=job_id)), 20))


@pytest.mark.usefixtures("quick")
class TestAdmit:
    def test_granted_after_the_one_before_has_left(self, ledger: Ledger, outside: Outside) -> None:
        cluster, other = FakeCluster(cpus="1"), "digits-0"
        ledger.jobs.record(NewJob(other, "default", "digits", "train_model", other, {}, "ada"))
        enqueue(ledger, other)
        queueing.plan(services_in_use(), nodes(cluster))
        assert queueing.ask(services_in_use(), other)[0] == "granted"
        enqueue(ledger)
        looks = 0

        def refuse(verb: str, name: str) -> None:
            nonlocal looks
            looks += 1
            if looks == 5:
                ledger.queue.release(other)

        cluster.refuse = refuse
        assert [e["kind"] for e in admitted(cluster, outside)] == ["granted"]
        reasons = [t.reason for t in ledger.jobs.transitions(JOB)]
        assert any("1st in the queue" in reason for reason in reasons)
        assert not any("waiting to be planned" in reason for reason in reasons)  # a moment that explains nothing

    def test_cancelled(self, ledger: Ledger, outside: Outside) -> None:
        enqueue(ledger, cpus=8)
        ledger.requests.make(JOB, "cancel", "bob")
        assert admitted(FakeCluster(), outside) == [{"kind": "cancelled", "reason": "cancelled by bob"}]

    def test_impossible(self, ledger: Ledger, outside: Outside) -> None:
        enqueue(ledger, cpus=8)
        (event,) = admitted(FakeCluster(), outside)
        assert event["kind"] == "impossible"
        assert "8 CPUs" in event["reason"]

    def test_a_job_waits_only_as_long_as_its_budget_allows(self, ledger: Ledger, outside: Outside) -> None:
        other, manifest = "digits-0", {**ledger.jobs.get(JOB).manifest, "budget": {"max_wait": "1s"}}
        ledger.jobs.record(NewJob(other, "default", "digits", "train_model", other, {}, "ada"))
        enqueue(ledger, other)
        cluster = FakeCluster(cpus="1")
        queueing.plan(services_in_use(), nodes(cluster))
        ledger.jobs.record(NewJob("hurried-1", "default", "hurried", "train_model", "hurried-1", manifest, "ada"))
        enqueue(ledger, "hurried-1")
        (event,) = admitted(cluster, outside, "hurried-1")
        assert event["kind"] == "expired"
        assert "as long as budget.max_wait allows (1s): 1st in the queue" in event["reason"]

    def test_a_job_that_was_launched_before_waits_as_long_as_it_takes(self, ledger: Ledger) -> None:
        manifest = {**ledger.jobs.get(JOB).manifest, "budget": {"max_wait": "1s"}}
        ledger.jobs.record(NewJob("hurried-1", "default", "hurried", "train_model", "hurried-1", manifest, "ada"))
        enqueue(ledger, "hurried-1")
        assert queueing.wait_left(services_in_use(), "hurried-1") is not None
        assert queueing.wait_left(services_in_use(), JOB) is None
        ledger.jobs.move("hurried-1", State.DEPLOYING, "admitted")
        ledger.attempts.ensure("hurried-1", "train", after=None, learners=1)
        assert queueing.wait_left(services_in_use(), "hurried-1") is None

    def test_a_job_that_has_ended_does_not_wait_for_ever(self, ledger: Ledger, outside: Outside) -> None:
        enqueue(ledger, cpus=8)
        ledger.jobs.finish(JOB, Verdict(State.FAILED, "marked as failed", Evidence()))
        ledger.queue.release(JOB)
        (event,) = admitted(FakeCluster(), outside)
        assert event == {"kind": "impossible", "reason": f"job {JOB} has ended FAILED"}

    def test_an_unreachable_cluster_only_lengthens_the_wait(self, ledger: Ledger, outside: Outside) -> None:
        enqueue(ledger)
        cluster, looks = FakeCluster(), [503, 403, 503]
        cluster.refuse = lambda verb, name: looks.pop() if looks else None
        assert [e["kind"] for e in admitted(cluster, outside)] == ["granted"]

    def test_a_job_can_be_cancelled_while_the_cluster_is_away(self, ledger: Ledger, outside: Outside) -> None:
        enqueue(ledger)
        ledger.requests.make(JOB, "cancel", "bob")
        cluster = FakeCluster()
        cluster.refuse = lambda verb, name: 503
        assert admitted(cluster, outside) == [{"kind": "cancelled", "reason": "cancelled by bob"}]

    def test_a_halt_while_the_cluster_is_away_takes_the_job_out_of_the_line(
        self, ledger: Ledger, outside: Outside
    ) -> None:
        enqueue(ledger)
        ledger.requests.make(JOB, "halt", "bob")
        cluster = FakeCluster()

        def refuse(verb: str, name: str) -> int:
            if ledger.jobs.get(JOB).state is State.HALTED:
                ledger.requests.make(JOB, "cancel", "bob")
            return 503

        cluster.refuse = refuse
        assert admitted(cluster, outside)[0]["kind"] == "cancelled"
        assert ledger.jobs.get(JOB).state is State.HALTED


# --- checkpoints ---


class Told(CheckpointTrigger):
    """Airflow answers it so whether the training has ended, one by one; the last answer stands."""

    answers: list[Any]

    async def _train_ended(self) -> bool:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)


def watched(answers: list[Any], keep: Any = None) -> list[dict[str, Any]]:
    made = Told(job_id=JOB, dag_id="d", run_id="r", train_task="train", keep=keep)
    made.answers = answers
    return asyncio.run(asyncio.wait_for(events(made), 20))


@pytest.mark.usefixtures("quick")
class TestCheckpoints:
    def test_what_is_stored_is_recorded_and_pruned(self, ledger: Ledger, store: FolderStore) -> None:
        for step, acc in ((1, 0.9), (2, 0.1), (3, 0.2), (4, 0.3)):
            store_checkpoint(store, JOB, f"step-{step}", step, {"acc": acc})
        assert watched([False, False, True], KEEP) == [{"kind": "ended"}]
        kept = {c.name: c.deleted_at is None for c in ledger.checkpoints.of_job(JOB, with_deleted=True)}
        assert kept == {"step-1": True, "step-2": False, "step-3": True, "step-4": True}
        assert [c.name for c in objects.list_checkpoints("default", JOB, store=store)] == ["step-1", "step-3", "step-4"]

    def test_airflow_and_the_store_may_be_away(self, ledger: Ledger, outside: Outside, store: FolderStore) -> None:
        store_checkpoint(store, JOB, "step-1", 1, {})
        states = [RuntimeError("no answer"), False, RuntimeError("no answer"), True]
        failures = 3

        def listed(prefix: str) -> Any:
            nonlocal failures
            if failures:
                failures -= 1
                raise StorageError("unreachable", "the store cannot be reached")
            return store.list(prefix)

        outside.store = Instead(store, list=listed)
        assert watched(states) == [{"kind": "ended"}]
        assert failures == 0
        assert [c.name for c in ledger.checkpoints.of_job(JOB)] == ["step-1"]

    @pytest.mark.usefixtures("ledger")
    def test_a_store_that_stays_away_does_not_hold_the_run(self, outside: Outside) -> None:
        def away(prefix: str) -> Any:
            raise StorageError("unreachable", "the store cannot be reached")

        outside.store = SimpleNamespace(list=away)
        assert watched([True]) == [{"kind": "ended"}]

    def test_a_checkpoint_that_was_let_go_is_not_news_again(self, ledger: Ledger, store: FolderStore) -> None:
        for step in (1, 2, 3):
            store_checkpoint(store, JOB, f"step-{step}", step, {})
        keep = {"latest": 1, "best": 0, "metric": None, "mode": "max"}
        assert len(follow_checkpoints(services_in_use(), JOB, keep)) == 3
        store_checkpoint(store, JOB, "step-1", 1, {})  # a late upload of the same one
        assert follow_checkpoints(services_in_use(), JOB, keep) == []
        assert len(ledger.checkpoints.of_job(JOB)) == 1

    def test_what_an_attempt_stores_after_its_end_is_removed(self, ledger: Ledger, store: FolderStore) -> None:
        ledger.attempts.ensure(JOB, "train", after=None)
        store_checkpoint(store, JOB, "step-1", 1, {})
        assert [c.name for c in follow_checkpoints(services_in_use(), JOB, None)] == ["step-1"]
        ledger.attempts.close(JOB, "train", 1, AttemptClosure("infrastructure", "its node was lost"))
        store_checkpoint(store, JOB, "step-2", 2, {})  # the node is only cut off, and its learner lives on
        assert follow_checkpoints(services_in_use(), JOB, None) == []
        assert [c.name for c in ledger.checkpoints.of_job(JOB)] == ["step-1"]
        assert [c.name for c in objects.list_checkpoints("default", JOB, store=store)] == ["step-1"]

    def test_a_quarantined_checkpoint_is_not_news_again(self, ledger: Ledger, store: FolderStore) -> None:
        store_checkpoint(store, JOB, "step-1", 1, {})
        follow_checkpoints(services_in_use(), JOB, None)
        ledger.checkpoints.quarantine(JOB, "step-1", "model.pt: its digest is another")
        assert follow_checkpoints(services_in_use(), JOB, None) == []
