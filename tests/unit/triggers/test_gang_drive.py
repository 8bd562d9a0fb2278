"""The gang's trigger as a process: it waits without spinning, says things once, and ends when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from outside import Outside
from unit.operators.platform_fakes import FakeCluster
from unit.triggers.trigger_helpers import JOB

from updraft.controller import pods
from updraft.controller.attempts import EndSignal
from updraft.controller.idempotency import Deployment, deployment
from updraft.exceptions import UnavailableError
from updraft.ledger import AttemptClosure, Ledger
from updraft.lifecycle import State
from updraft.recovery.ends import EndKind
from updraft.recovery.policy import PlannedRelaunch
from updraft.services import Services
from updraft.triggers import gang, queue
from updraft.triggers.gang import GangTrigger
from updraft.triggers.request_poller import RequestPoller

REAL_SLEEP = asyncio.sleep


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        return lambda text, *args: self.lines.append((level, text % args))


class Sleeps:
    """Replaces the trigger's sleeping: counts it, and lets others run."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.enough = 10_000

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if len(self.seconds) >= self.enough:
            raise asyncio.CancelledError
        await REAL_SLEEP(0)


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    made = Sleeps()
    replaced = SimpleNamespace(
        **{name: getattr(asyncio, name) for name in ("to_thread", "get_running_loop", "create_task")}
    )
    replaced.sleep = made.sleep
    monkeypatch.setattr(gang, "asyncio", replaced)
    return made


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()
    monkeypatch.setattr(GangTrigger, "log", made)
    return made


@pytest.fixture
def cluster(outside: Outside) -> FakeCluster:
    """Also the watch: nobody looks at pods here."""
    outside.cluster = FakeCluster()
    outside.watch = SimpleNamespace(api=None, subscribe=lambda key: None, unsubscribe=lambda *_: None)
    return outside.cluster


def trigger() -> GangTrigger:
    return GangTrigger(conn_id="c", namespace="updraft-default", job_id=JOB, role="train")


def run(made: GangTrigger) -> list[dict[str, Any]]:
    async def events() -> list[dict[str, Any]]:
        return [event.payload async for event in made.run()]

    return asyncio.run(asyncio.wait_for(events(), 60))


def stopped(made: GangTrigger) -> None:
    """Runs until `Sleeps` has had enough."""
    with pytest.raises(asyncio.CancelledError):
        run(made)


def lost(ledger: Ledger, delay_seconds: float) -> None:
    until = datetime.now(UTC) + timedelta(seconds=delay_seconds)
    ledger.attempts.ensure(JOB, "train", after=None)
    again = PlannedRelaunch(until, delay_seconds, "infrastructure loss 2 of 5: launched again in 300 s")
    ledger.attempts.close(JOB, "train", 1, AttemptClosure("infrastructure", "its node was lost", relaunch=again))


def halted(ledger: Ledger) -> None:
    ledger.requests.make(JOB, "halt", "bob")
    ledger.jobs.rest(JOB, "it had not started", attempt=None)


def in_line(ledger: Ledger) -> None:
    halted(ledger)
    ledger.requests.make(JOB, "resume", "bob")


@pytest.mark.usefixtures("store", "cluster")
class TestWaiting:
    def test_a_back_off_is_said_once_and_what_was_left_is_stopped(
        self, ledger: Ledger, sleeps: Sleeps, log: Log, cluster: FakeCluster
    ) -> None:
        lost(ledger, 300)
        labels = {"job": JOB, "role": "train", "attempt": "1", "tenant": "default"}
        marks = {f"updraft.dev/{name}": value for name, value in labels.items()}
        cluster.pods["p"] = {"metadata": {"name": "p", "labels": marks}}
        sleeps.enough = 50
        stopped(trigger())
        assert [text for level, text in log.lines if level == "info" and "Launched again" in text] == [
            text for _, text in log.lines
        ]
        assert len(log.lines) == 1
        assert set(sleeps.seconds) == {gang.TICK_SECONDS}
        assert cluster.left == []

    def test_a_cancel_ends_a_back_off_at_once(self, ledger: Ledger, sleeps: Sleeps, log: Log) -> None:
        lost(ledger, 300)
        ledger.requests.make(JOB, "cancel", "bob")
        assert run(trigger()) == [{"kind": "ended", "reason": "cancelled by bob"}]

    def test_a_halted_job_waits_quietly_and_a_cancel_ends_it(
        self, ledger: Ledger, sleeps: Sleeps, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        halted(ledger)
        looks = []

        async def asked(self: RequestPoller, job_id: str) -> bool:
            looks.append(self._guarded[job_id].what)
            if len(looks) == 20:
                ledger.requests.make(JOB, "cancel", "bob")
            return job_id in ledger.requests.asked()

        monkeypatch.setattr(RequestPoller, "asked", asked)
        assert run(trigger()) == [{"kind": "ended", "reason": "cancelled by bob"}]
        assert set(looks) == {"train: halted"}
        assert sleeps.seconds == [gang.TICK_SECONDS] * 20
        assert log.lines == []

    @pytest.mark.parametrize("begin", [halted, in_line, lambda ledger: lost(ledger, 300)])
    def test_it_ends_when_it_is_told_to_wherever_it_waits(
        self,
        ledger: Ledger,
        outside: Outside,
        log: Log,
        begin: Callable[[Ledger], None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        begin(ledger)
        waits = asyncio.Event()

        async def nodes(conn_id: str) -> list[Any]:
            waits.set()
            return []

        async def asked(self: RequestPoller, job_id: str) -> bool:
            waits.set()
            return False

        async def main() -> None:
            made = trigger()
            made._touch = lambda what: loop.call_soon_threadsafe(waits.set)  # type: ignore[assignment,misc,return-value]
            loop = asyncio.get_running_loop()
            running = asyncio.create_task(made.run().__anext__())
            await waits.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(asyncio.shield(running), 5)

        outside.list_nodes = nodes  # type: ignore[method-assign,assignment]
        monkeypatch.setattr(RequestPoller, "asked", asked)
        monkeypatch.setattr(gang, "TICK_SECONDS", 0.01)
        asyncio.run(asyncio.wait_for(main(), 20))
        assert not ledger.jobs.get(JOB).ended


@pytest.mark.usefixtures("store", "cluster")
class TestTrouble:
    @pytest.mark.parametrize(
        ("error", "level"), [(UnavailableError("the ledger is away"), "warning"), (KeyError("x"), "exception")]
    )
    def test_errors_without_an_end_are_waited_out_more_and_more_slowly(
        self, ledger: Ledger, sleeps: Sleeps, log: Log, monkeypatch: pytest.MonkeyPatch, error: Exception, level: str
    ) -> None:
        def away(*args: Any) -> Any:
            raise error

        monkeypatch.setattr(ledger.jobs, "get", away)
        sleeps.enough = 9
        stopped(trigger())
        assert sleeps.seconds == [1, 2, 4, 8, 16, 30, 30, 30, 30]
        assert [said for said, _ in log.lines] == [level] * 9

    def test_a_watch_that_cannot_be_had_is_asked_for_again(
        self, ledger: Ledger, outside: Outside, sleeps: Sleeps, log: Log
    ) -> None:
        """The connection is asked of Airflow, which may be away itself; the task must not fail for it."""
        answers: list[Exception | None] = [RuntimeError("no answer"), UnavailableError("away"), None]

        @asynccontextmanager
        async def shared(conn_id: str, namespace: str) -> AsyncIterator[Any]:
            if (answer := answers.pop(0)) is not None:
                raise answer
            yield SimpleNamespace(api=None)

        outside.watch_pods = shared  # type: ignore[method-assign,assignment]
        ledger.requests.make(JOB, "cancel", "bob")
        assert run(trigger())[0]["kind"] == "ended"
        assert answers == []

    def test_a_cluster_that_does_not_answer_about_its_nodes_is_why_a_job_waits(
        self, ledger: Ledger, outside: Outside, sleeps: Sleeps, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        outside.nodes = UnavailableError("the cluster's nodes cannot be listed")
        monkeypatch.setattr(queue, "TURN_SECONDS", 0.01)
        in_line(ledger)

        async def main() -> None:
            running = asyncio.create_task(trigger().run().__anext__())
            while (ledger.jobs.get(JOB).state, ledger.jobs.get(JOB).reason) != (
                State.QUEUED,
                "the cluster's nodes cannot be listed",
            ):
                await asyncio.sleep(0.01)
            running.cancel()

        asyncio.run(asyncio.wait_for(main(), 20))
        assert {text for _, text in log.lines} <= {"waiting: the cluster's nodes cannot be listed"}

    def test_an_attempt_of_a_revision_without_its_pod_waits_for_the_task(
        self, ledger: Ledger, sleeps: Sleeps, log: Log
    ) -> None:
        ledger.attempts.ensure(JOB, "train", after=None)
        assert run(trigger()) == [gang.REVISED]
        assert ledger.attempts.of_job(JOB)[0].ended_at is None

    def test_learners_that_live_are_not_looked_at_without_a_pause(
        self, ledger: Ledger, services: Services, sleeps: Sleeps, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever made the watching end, nothing has ended."""
        ledger.attempts.ensure(JOB, "train", after=None)
        pods.record_template(services, ledger.jobs.get(JOB), "train", {"spec": {}})

        class Observed:
            def __init__(self, *args: Any) -> None: ...

            async def run(self) -> EndSignal:
                return EndSignal(EndKind.MISSING, "gone")

        monkeypatch.setattr(gang, "AttemptMonitor", Observed)
        monkeypatch.setattr(pods, "deploy", lambda *args: None)
        monkeypatch.setattr(gang.attempts, "conclude", lambda *args: None)
        sleeps.enough = 5
        stopped(trigger())
        assert sleeps.seconds == [1.0] * 5


def test_a_job_that_cannot_be_resumed_so_is_halted_again(ledger: Ledger) -> None:
    in_line(ledger)
    made = trigger()
    ledger.jobs.move(JOB, State.QUEUED, "resumed")
    made._record_impossible("no node has 99 CPUs")
    assert ledger.jobs.get(JOB).reason == "it cannot go on like this: no node has 99 CPUs"
    ledger.jobs.move(JOB, State.QUEUED, "resumed")
    ledger.jobs.move(JOB, State.DEPLOYING, "granted")
    made._record_impossible("an answer of long ago")
    assert ledger.jobs.get(JOB).state is State.DEPLOYING


def test_the_time_for_starting_counts_from_the_pods_creation(ledger: Ledger, services: Services) -> None:
    """A cluster that did not answer for half an hour took the pods late, which is not the pods' fault."""
    attempt = ledger.attempts.ensure(JOB, "train", after=None)
    since = (ledger.now() - attempt.started_at).total_seconds()
    assert since <= pods.deployed_seconds(services, attempt) < since + 60
    at = ledger.now() - timedelta(minutes=31)
    ledger.idempotency.record(JOB, deployment("train", 1), Deployment(("p",), at))
    assert pods.deployed_seconds(services, attempt) >= 31 * 60
