"""A thousand triggers ask the ledger once a second, all together, and each hears of what is asked of its own job."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

import pytest
from outside import Instead, Outside
from unit.triggers.trigger_helpers import JOB, services_in_use

from updraft.exceptions import UnavailableError
from updraft.ledger import Ledger, NewJob
from updraft.timing import TIMING, RateLimiter
from updraft.triggers.request_poller import TOUCH_SECONDS, RequestPoller

MANIFEST = {"name": "digits", "framework": {"name": "pytorch"}, "command": "python train.py"}
OTHER = "digits-2"
LOOK_SECONDS = TIMING.requests_seconds


class Hand:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hand(outside: Outside) -> Hand:
    made = Hand()
    outside.timing = replace(outside.timing, clock=made)
    return made


def asks(outside: Outside, asked: Callable[[], frozenset[str]]) -> None:
    """The ledger answers so to who asks it for requests."""
    outside.ledger = Instead(outside.ledger, requests=Instead(outside.ledger.requests, asked=asked))


@pytest.mark.usefixtures("hand")
def test_many_triggers_cost_one_look(ledger: Ledger, outside: Outside) -> None:
    looks: list[str] = []

    def asked() -> frozenset[str]:
        looks.append("asked")
        return ledger.requests.asked()

    asks(outside, asked)

    async def run() -> list[bool]:
        desk = RequestPoller(services_in_use())
        return await asyncio.gather(*(desk.asked(f"job-{n}") for n in range(1000)))

    assert asyncio.run(run()) == [False] * 1000
    assert looks == ["asked"]


def test_each_hears_of_its_own_job_at_the_next_look_and_until_it_is_answered(ledger: Ledger, hand: Hand) -> None:
    ledger.jobs.record(NewJob(OTHER, "default", "digits", "train_model", OTHER, MANIFEST, "ada"))

    async def run() -> None:
        desk = RequestPoller(services_in_use())
        assert not await desk.asked(JOB)
        request = ledger.requests.make(JOB, "halt", "ada")
        assert not await desk.asked(JOB)
        hand.now += LOOK_SECONDS
        assert await desk.asked(JOB)
        assert not await desk.asked(OTHER)
        ledger.requests.answer(JOB, request.seq, "halted")
        hand.now += LOOK_SECONDS
        assert not await desk.asked(JOB)

    asyncio.run(run())


@pytest.mark.usefixtures("hand")
def test_a_cancellation_is_heard_of(ledger: Ledger) -> None:
    ledger.requests.make(JOB, "cancel", "ada")
    assert asyncio.run(RequestPoller(services_in_use()).asked(JOB))


def test_the_ledger_hears_who_is_guarded_at_once_and_then_every_ten_seconds(
    ledger: Ledger, outside: Outside, hand: Hand
) -> None:
    touched = []

    def touch(guarded: Mapping[str, str]) -> None:
        touched.append(dict(guarded))
        ledger.jobs.touch_all(guarded)

    outside.ledger = Instead(ledger, jobs=Instead(ledger.jobs, touch_all=touch))

    def seen() -> tuple[object, object]:
        job = ledger.jobs.get(JOB)
        return job.controller_seen_at is not None, job.controller_what

    async def told(desk: RequestPoller) -> None:
        await desk.asked(OTHER)
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))

    async def run() -> None:
        desk = RequestPoller(services_in_use())
        await told(desk)
        assert seen() == (False, None)
        hand.now += LOOK_SECONDS
        with desk.guarding(JOB, "train: watching attempt 1"):
            await told(desk)
            assert seen() == (True, "train: watching attempt 1")
        hand.now += 2 * TOUCH_SECONDS
        touched.clear()
        await told(desk)
        assert touched == [], "nobody guards it any more"

    asyncio.run(run())


def test_a_ledger_that_is_away_is_asked_once_a_second_and_all_are_told(
    ledger: Ledger, outside: Outside, hand: Hand
) -> None:
    asked = []

    def away() -> frozenset[str]:
        asked.append(hand.now)
        raise UnavailableError("the ledger is away")

    async def run() -> None:
        desk = RequestPoller(services_in_use())
        asks(outside, away)
        for _ in range(5):
            with pytest.raises(UnavailableError):
                await desk.asked(JOB)
        outside.ledger = ledger
        hand.now += LOOK_SECONDS
        assert not await desk.asked(JOB)

    asyncio.run(run())
    assert asked == [50.0]


@pytest.mark.usefixtures("ledger", "hand")
def test_a_ledger_that_hangs_is_asked_once_and_keeps_nobody(outside: Outside) -> None:
    asked, let_go = [], threading.Event()

    def hangs() -> frozenset[str]:
        asked.append(1)
        let_go.wait(30)
        return frozenset({JOB})

    asks(outside, hangs)
    outside.timing = replace(outside.timing, ledger_patience_seconds=0.01)

    async def run() -> None:
        desk = RequestPoller(services_in_use())
        for _ in range(5):
            with pytest.raises(UnavailableError, match="does not answer"):
                await desk.asked(JOB)
        let_go.set()
        while True:
            with suppress(UnavailableError):
                assert await desk.asked(JOB)
                return

    asyncio.run(asyncio.wait_for(run(), 30))
    assert asked == [1]


@pytest.mark.usefixtures("ledger", "hand")
def test_what_nobody_foresaw_is_told_like_a_ledger_that_is_away(outside: Outside) -> None:
    def breaks() -> frozenset[str]:
        raise ValueError("strange")

    asks(outside, breaks)
    with pytest.raises(UnavailableError, match="ValueError"):
        asyncio.run(RequestPoller(services_in_use()).asked(JOB))


@pytest.mark.usefixtures("ledger", "hand")
def test_a_late_trigger_does_not_take_its_successors_place() -> None:
    desk = RequestPoller(services_in_use())
    late, successor = desk.guarding(JOB, "late"), desk.guarding(JOB, "successor")
    late.__enter__()
    successor.__enter__()
    late.__exit__(None, None, None)
    assert {job: guard.what for job, guard in desk._guarded.items()} == {JOB: "successor"}


def test_few_look_as_often_as_they_like_and_many_in_turn() -> None:
    now = 100.0
    pace = RateLimiter(least_seconds=4.0, most_per_second=5.0, clock=lambda: now)
    assert pace.turn_seconds() == 4.0
    # A triggerer that is started again asks for all of its jobs at once, and each time a job has looked.
    turns = [pace.turn_seconds() for _ in range(999)]
    assert turns == pytest.approx([4.0 + 0.2 * number for number in range(1, 1000)])
    now += turns[-1]
    assert pace.turn_seconds() == 4.0


def test_each_of_many_has_its_turn_as_often_as_the_others() -> None:
    now = 0.0
    pace = RateLimiter(least_seconds=4.0, most_per_second=5.0, clock=lambda: now)
    waiting = [(pace.turn_seconds(), number) for number in range(100)]
    looked: list[int] = []
    for _ in range(300):
        now, number = min(waiting)
        looked.append(number)
        waiting.remove((now, number))
        waiting.append((now + pace.turn_seconds(), number))
    assert looked == [*range(100)] * 3
    assert now == pytest.approx(4.0 + 299 * 0.2)
