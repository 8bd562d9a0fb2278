"""The gang's trigger as a process: it waits without spinning, says things once, and ends when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from outside import Instead, Outside
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
from updraft.timing import TIMING
from updraft.triggers import gang
from updraft.triggers.gang import GangTrigger

REAL_SLEEP = asyncio.sleep
MARKS = {
    f"updraft.dev/{name}": value
    for name, value in {"job": JOB, "role": "train", "attempt": "1", "tenant": "default"}.items()
}


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
def sleeps(outside: Outside) -> Sleeps:
    made = Sleeps()
    outside.timing = replace(outside.timing, sleep=made.sleep)
    return made


@pytest.fixture
def cluster(outside: Outside) -> FakeCluster:
    """Also the watch: nobody looks at pods here."""
    outside.cluster = FakeCluster()
    outside.watch = SimpleNamespace(api=None, subscribe=lambda key: None, unsubscribe=lambda *_: None)
    return outside.cluster


class Watched(GangTrigger):
    """A trigger whose log is read, and whose steps a test can replace."""

    log: Any = None

    def __init__(self) -> None:
        super().__init__(conn_id="c", namespace="updraft-default", job_id=JOB, role="train")
        self.log = Log()
        self.poller: Any = None  # in place of the process's
        self.touched: Callable[[], object] | None = None
        self.sees: EndSignal | None = None  # at once, of each attempt that it watches

    async def _watch_attempt(self, *attempt: Any) -> EndSignal:
        return self.sees or await super()._watch_attempt(*attempt)

    def _poller(self) -> Any:
        return self.poller or super()._poller()

    def _touch(self, what: str) -> None:
        if self.touched is None:
            super()._touch(what)
        else:
            self.touched()


@dataclass
class Poller:
    """What users ask of the job."""

    asks: Callable[[str], bool]
    what: str = ""

    @contextmanager
    def guarding(self, job_id: str, what: str) -> Iterator[None]:
        self.what = what
        yield

    async def asked(self, job_id: str) -> bool:
        return self.asks(self.what)


def run(made: Watched) -> list[dict[str, Any]]:
    async def events() -> list[dict[str, Any]]:
        return [event.payload async for event in made.run()]

    return asyncio.run(asyncio.wait_for(events(), 60))


def stopped(made: Watched) -> None:
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
        self, ledger: Ledger, sleeps: Sleeps, cluster: FakeCluster
    ) -> None:
        lost(ledger, 300)
        cluster.pods["p"] = {"metadata": {"name": "p", "labels": MARKS}}
        sleeps.enough = 50
        made = Watched()
        stopped(made)
        ((level, text),) = made.log.lines
        assert (level, "Launched again" in text) == ("info", True)
        assert set(sleeps.seconds) == {TIMING.tick_seconds}
        assert cluster.left == []

    def test_a_cancel_ends_a_back_off_at_once(self, ledger: Ledger, sleeps: Sleeps) -> None:
        lost(ledger, 300)
        ledger.requests.make(JOB, "cancel", "bob")
        assert run(Watched()) == [{"kind": "ended", "reason": "cancelled by bob"}]

    def test_a_halted_job_waits_quietly_and_a_cancel_ends_it(self, ledger: Ledger, sleeps: Sleeps) -> None:
        halted(ledger)
        looks = []

        def asked(what: str) -> bool:
            looks.append(what)
            if len(looks) == 20:
                ledger.requests.make(JOB, "cancel", "bob")
            return JOB in ledger.requests.asked()

        made = Watched()
        made.poller = Poller(asked)
        assert run(made) == [{"kind": "ended", "reason": "cancelled by bob"}]
        assert set(looks) == {"train: halted"}
        assert sleeps.seconds == [TIMING.tick_seconds] * 20
        assert made.log.lines == []

    @pytest.mark.parametrize("begin", [halted, in_line, lambda ledger: lost(ledger, 300)])
    def test_it_ends_when_it_is_told_to_wherever_it_waits(
        self, ledger: Ledger, outside: Outside, begin: Callable[[Ledger], None]
    ) -> None:
        begin(ledger)
        waits = asyncio.Event()

        async def nodes(conn_id: str) -> list[Any]:
            waits.set()
            return []

        async def main() -> None:
            made, loop = Watched(), asyncio.get_running_loop()
            made.touched = lambda: loop.call_soon_threadsafe(waits.set)
            made.poller = None if begin is in_line else Poller(lambda what: bool(waits.set()))
            running = asyncio.create_task(made.run().__anext__())
            await waits.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(asyncio.shield(running), 5)

        outside.list_nodes = nodes  # type: ignore[method-assign,assignment]
        outside.timing = replace(outside.timing, tick_seconds=0.01)
        asyncio.run(asyncio.wait_for(main(), 20))
        assert not ledger.jobs.get(JOB).ended


@pytest.mark.usefixtures("store", "cluster")
class TestTrouble:
    @pytest.mark.parametrize(
        ("error", "level"), [(UnavailableError("the ledger is away"), "warning"), (KeyError("x"), "exception")]
    )
    def test_errors_without_an_end_are_waited_out_more_and_more_slowly(
        self, ledger: Ledger, outside: Outside, sleeps: Sleeps, error: Exception, level: str
    ) -> None:
        def away(*args: Any) -> Any:
            raise error

        outside.ledger = Instead(ledger, jobs=Instead(ledger.jobs, get=away))
        sleeps.enough = 9
        made = Watched()
        stopped(made)
        assert sleeps.seconds == [1, 2, 4, 8, 16, 30, 30, 30, 30]
        assert [said for said, _ in made.log.lines] == [level] * 9

    def test_a_watch_that_cannot_be_had_is_asked_for_again(
        self, ledger: Ledger, outside: Outside, sleeps: Sleeps
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
        assert run(Watched())[0]["kind"] == "ended"
        assert answers == []

    def test_a_cluster_that_does_not_answer_about_its_nodes_is_why_a_job_waits(
        self, ledger: Ledger, outside: Outside, sleeps: Sleeps
    ) -> None:
        outside.nodes = UnavailableError("the cluster's nodes cannot be listed")
        outside.timing = replace(outside.timing, queue_turn_seconds=0.01)
        in_line(ledger)
        made = Watched()

        async def main() -> None:
            running = asyncio.create_task(made.run().__anext__())
            while (ledger.jobs.get(JOB).state, ledger.jobs.get(JOB).reason) != (
                State.QUEUED,
                "the cluster's nodes cannot be listed",
            ):
                await asyncio.sleep(0.01)
            running.cancel()

        asyncio.run(asyncio.wait_for(main(), 20))
        assert {text for _, text in made.log.lines} <= {"waiting: the cluster's nodes cannot be listed"}

    def test_an_attempt_of_a_revision_without_its_pod_waits_for_the_task(self, ledger: Ledger, sleeps: Sleeps) -> None:
        ledger.attempts.ensure(JOB, "train", after=None)
        assert run(Watched()) == [gang.REVISED]
        assert ledger.attempts.of_job(JOB)[0].ended_at is None

    def test_learners_that_live_are_not_looked_at_without_a_pause(
        self, ledger: Ledger, services: Services, cluster: FakeCluster, sleeps: Sleeps
    ) -> None:
        """Whatever made the watching end, nothing has ended."""
        ledger.attempts.ensure(JOB, "train", after=None)
        pods.record_template(services, ledger.jobs.get(JOB), "train", {"spec": {}})
        ledger.idempotency.record(JOB, deployment("train", 1), Deployment(("p",), ledger.now()))
        cluster.pods["p"] = {"metadata": {"name": "p", "labels": MARKS | {"updraft.dev/learner": "1"}}}
        cluster.set_status("p")
        sleeps.enough = 5
        made = Watched()
        made.sees = EndSignal(EndKind.MISSING, "gone")
        stopped(made)
        assert sleeps.seconds == [1.0] * 5


def test_a_job_that_cannot_be_resumed_so_is_halted_again(ledger: Ledger) -> None:
    in_line(ledger)
    made = Watched()
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
