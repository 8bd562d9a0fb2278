"""The queue of a triggerer: one planner of all, who rests when nothing changes, and each job hears of its own row."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from outside import Instead, Outside
from unit.triggers.trigger_helpers import JOB, services_in_use

from updraft.allocation import GangRequest
from updraft.exceptions import UnavailableError
from updraft.ledger import Admission, Ledger, NewJob
from updraft.lifecycle import State
from updraft.timing import TIMING
from updraft.triggers import queue
from updraft.triggers.queue import QueueReader, WaitingJob

NODE = {
    "metadata": {"name": "local"},
    "status": {"allocatable": {"cpu": "2", "memory": "4Gi"}, "conditions": [{"type": "Ready", "status": "True"}]},
}
GRANTED = Admission(True, None, "granted")


@pytest.fixture
def cluster(outside: Outside, quick: Any) -> list[dict[str, Any]]:
    """Its nodes; empty: it does not answer."""
    nodes: list[dict[str, Any]] = [NODE]

    async def nodes_of(conn_id: str) -> list[dict[str, Any]]:
        if not nodes:
            raise UnavailableError("the cluster is away")
        return list(nodes)

    outside.list_nodes = nodes_of  # type: ignore[method-assign,assignment]
    return nodes


@pytest.fixture
def plans(ledger: Ledger, outside: Outside) -> list[object]:
    """Grows with each plan."""
    made: list[object] = []

    def plan(capacity: Any) -> Any:
        made.append(capacity)
        return ledger.queue.plan(capacity)

    queues(outside, plan=plan)
    return made


def queues(outside: Outside, **methods: Callable[..., Any]) -> None:
    """The ledger's queue answers with these methods."""
    outside.ledger = Instead(outside.ledger, queue=Instead(outside.ledger.queue, **methods))


def waits(ledger: Ledger, number: int) -> str:
    """A job that needs the whole cluster."""
    job_id = f"waits-{number}"
    job = ledger.jobs.record(NewJob(job_id, "default", "digits", "train_model", job_id, {}, "ada"))
    ledger.queue.enqueue(job_id, GangRequest(job_id, 1, 2.0, 100, 0, None, job.submitted_at))
    ledger.jobs.move(job_id, State.QUEUED, "waiting")
    return job_id


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 20))


async def hears(place: WaitingJob, expected: Callable[[Admission], bool]) -> Admission:
    """The next word of the planner that is as expected."""
    while True:
        if (told := await place.news()) is not None and expected(told):
            return told


async def comes(what: Callable[[], bool]) -> None:
    while not what():
        await asyncio.sleep(0.01)


def test_a_place_that_is_given_back_is_given_to_the_next(ledger: Ledger, cluster: list[Any]) -> None:
    first, second, third = (waits(ledger, number) for number in range(3))

    async def main() -> None:
        mine = QueueReader(services_in_use(), "c")
        with mine.waiting(second, "admit") as there, mine.waiting(third, "admit") as behind:
            places = [there, behind]
            await comes(lambda: ledger.queue.admission(first).granted)
            assert ledger.queue.admission(third).place == 2
            assert [await place.news() for place in places] == [None, None]  # they look for themselves first
            ledger.queue.release(first)
            assert await hears(places[0], lambda told: told.granted) == GRANTED
            assert (await hears(places[1], lambda told: told.place == 1)).waits

    run(main)


def test_the_queue_is_planned_while_an_elastic_job_runs_and_no_job_waits_here(
    ledger: Ledger, cluster: list[Any]
) -> None:
    async def main() -> None:
        mine = QueueReader(services_in_use(), "c")
        with mine.planned():
            await comes(lambda: not ledger.queue.plan_is_due())
            first = waits(ledger, 0)  # as if another process had put it into the queue
            await comes(lambda: ledger.queue.admission(first).granted)

    run(main)


def test_nothing_is_planned_while_nothing_changes(
    ledger: Ledger, outside: Outside, cluster: list[Any], plans: list[object]
) -> None:
    waits(ledger, 0)
    turns = 0

    def news(since: int | None) -> Any:
        nonlocal turns
        turns += 1
        return ledger.queue.news(since)

    queues(outside, news=news)

    async def main() -> None:
        with QueueReader(services_in_use(), "c").waiting(waits(ledger, 1), "admit") as place:
            await comes(lambda: turns >= 20)
            assert len(plans) == 1
            cluster.append({**NODE, "metadata": {"name": "new"}})
            await hears(place, lambda told: told.granted)
            assert len(plans) == 2

    run(main)


def test_of_two_triggerers_one_plans_and_the_other_takes_over(ledger: Ledger, cluster: list[Any]) -> None:
    running, waiting = waits(ledger, 0), waits(ledger, 1)

    async def main() -> None:
        first, second = QueueReader(services_in_use(), "c"), QueueReader(services_in_use(), "c")
        with ExitStack() as stack:
            there = stack.enter_context(second.waiting(waiting, "admit"))
            await comes(lambda: second._leads)
            with first.waiting(JOB, "admit"):
                for _ in range(10):
                    await asyncio.sleep(0.01)
                    assert (first._leads, second._leads) == (False, True)
                stack.close()  # its last job is gone, and soon its lease
                await comes(lambda: not second._leads)
                with first.waiting(waiting, "admit") as there:
                    ledger.queue.release(running)
                    await hears(there, lambda told: told.granted)
                    assert first._leads
                    assert not second._leads

    run(main)


def test_a_planner_that_died_is_replaced_when_its_lease_runs_out(ledger: Ledger, cluster: list[Any]) -> None:
    job_id = waits(ledger, 0)
    assert ledger.leases.take(queue.LEASE, "dead", 0.5)

    async def main() -> None:
        with QueueReader(services_in_use(), "c").waiting(job_id, "admit") as place:
            await hears(place, lambda told: told.granted)

    run(main)
    assert ledger.leases.take(queue.LEASE, "another", 1.0)  # the one that left gave it back


def test_a_cluster_that_does_not_answer_is_why_jobs_wait(ledger: Ledger, outside: Outside, cluster: list[Any]) -> None:
    job_id = waits(ledger, 0)
    cluster.clear()
    held: list[str] = []

    def hold(problem: str) -> None:
        held.append(problem)
        ledger.queue.hold(problem)

    queues(outside, hold=hold)

    async def main() -> None:
        with QueueReader(services_in_use(), "c").waiting(job_id, "admit") as place:
            await comes(lambda: ledger.jobs.get(job_id).reason == "the cluster is away")
            await asyncio.sleep(0.2)
            assert held == ["the cluster is away"]
            cluster.append(NODE)
            await hears(place, lambda told: told.granted)

    run(main)


@pytest.mark.parametrize("error", [UnavailableError("the ledger is away"), KeyError("x")])
def test_a_ledger_that_is_away_only_lengthens_the_wait(
    ledger: Ledger, outside: Outside, cluster: list[Any], error: Exception
) -> None:
    job_id = waits(ledger, 0)
    failures = [error] * 5

    def away(since: int | None) -> Any:
        if failures:
            raise failures.pop()
        return ledger.queue.news(since)

    queues(outside, news=away)

    async def main() -> None:
        with QueueReader(services_in_use(), "c").waiting(job_id, "admit") as place:
            assert await place.news() is None
            await comes(lambda: ledger.queue.admission(job_id).granted)

    run(main)
    assert failures == []


def test_what_users_ask_of_a_job_wakes_it(ledger: Ledger, cluster: list[Any]) -> None:
    waits(ledger, 0)
    job_id = waits(ledger, 1)

    async def main() -> None:
        with QueueReader(services_in_use(), "c").waiting(job_id, "admit") as place:
            await comes(lambda: ledger.queue.admission(job_id).place == 1)
            ledger.requests.make(job_id, "halt", "bob")
            while await place.news() is not None:
                pass

    run(main)


def test_a_word_to_look_is_not_lost_behind_a_later_one() -> None:
    async def main() -> None:
        place = WaitingJob("j", TIMING)
        place.tell(None)
        place.tell(GRANTED)
        assert await place.news() is None
        place.tell(GRANTED)
        assert await place.news() == GRANTED

    run(main)


def test_a_job_that_comes_while_the_lease_is_given_back_is_served(
    ledger: Ledger, outside: Outside, cluster: list[Any]
) -> None:
    first, second = waits(ledger, 0), waits(ledger, 1)
    gives = asyncio.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def slow(name: str, owner: str) -> None:
            loop.call_soon_threadsafe(gives.set)
            time.sleep(0.3)
            ledger.leases.give(name, owner)

        outside.ledger = Instead(ledger, leases=Instead(ledger.leases, give=slow))
        mine = QueueReader(services_in_use(), "c")
        with mine.waiting(first, "admit"):
            await comes(lambda: ledger.queue.admission(first).granted)
        await gives.wait()
        with mine.waiting(second, "admit") as place:
            assert await place.news() is None
            ledger.queue.release(first)
            await hears(place, lambda told: told.granted)

    run(main)


def hangs(outside: Outside, cluster: list[Any]) -> None:
    async def list_nodes(_conn_id: str) -> Any:
        await asyncio.sleep(3600)

    outside.list_nodes = list_nodes  # type: ignore[method-assign,assignment]


def has_a_bad_node(outside: Outside, cluster: list[Any]) -> None:
    cluster[:] = [{**NODE, "status": {**NODE["status"], "allocatable": {"cpu": "12 parsecs", "memory": "4Gi"}}}]


def fails(outside: Outside, cluster: list[Any]) -> None:
    def plan(*_: object) -> Any:
        raise ValueError("a mistake in the plan")

    queues(outside, plan=plan)


@pytest.mark.parametrize("breaks", [hangs, has_a_bad_node, fails])
def test_a_plan_that_hangs_or_fails_keeps_nobody_from_hearing_of_requests(
    ledger: Ledger, outside: Outside, cluster: list[Any], breaks: Callable[[Outside, list[Any]], None]
) -> None:
    job_id = waits(ledger, 0)
    breaks(outside, cluster)

    async def main() -> None:
        with QueueReader(services_in_use(), "c").waiting(job_id, "admit") as place:
            assert await place.news() is None
            ledger.requests.make(job_id, "halt", "bob")
            assert await place.news() is None
            ledger.requests.make(job_id, "resume", "bob")
            if breaks is not hangs:  # and the plan is tried again
                outside.ledger, cluster[:] = ledger, [NODE]
                await comes(lambda: ledger.queue.admission(job_id).granted)

    run(main)


@pytest.mark.parametrize(("seconds", "logged"), [(0, ["waiting: number 3", "waiting: number 2"]), (1000, [])])
def test_of_many_places_in_a_row_few_are_logged(
    caplog: pytest.LogCaptureFixture, seconds: float, logged: list[str]
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        place = WaitingJob("job-1", replace(TIMING, place_log_seconds=seconds))
        waiting = asyncio.create_task(place.look_again(logging.getLogger("trigger"), at_first_plan=False))
        for number in (3, 2):
            place.tell(Admission(False, number, f"number {number}"))
            await asyncio.sleep(0.01)
        place.tell(GRANTED)
        await waiting

    run(main)
    assert caplog.messages == logged


def test_a_job_that_was_not_planned_is_looked_at_once_it_is() -> None:
    async def main() -> None:
        place = WaitingJob("job-1", TIMING)
        waiting = asyncio.create_task(place.look_again(logging.getLogger("trigger"), at_first_plan=True))
        await asyncio.sleep(0)
        place.tell(Admission(False, 1, "number 1 in the queue"))
        await waiting

    run(main)
