"""A thousand triggers ask the ledger once a second, all together, and each hears of what is asked of its own job."""

from __future__ import annotations

import asyncio

import pytest
from unit.triggers.trigger_helpers import JOB

from updraft.exceptions import UnavailableError
from updraft.guardian.pace import Pace
from updraft.ledger import Ledger, NewJob
from updraft.triggers import desk as desk_module
from updraft.triggers.desk import LOOK_SECONDS, TOUCH_SECONDS, Desk

MANIFEST = {"name": "digits", "framework": {"name": "pytorch"}, "command": "python train.py"}
OTHER = "digits-2"


class Hand:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def counted(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    looks: list[str] = []
    real = book.asked

    def asked() -> frozenset[str]:
        looks.append("asked")
        return real()

    monkeypatch.setattr(book, "asked", asked)
    return looks


def test_many_triggers_cost_one_look(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, hand = counted(ledger, monkeypatch), Hand()

    async def run() -> list[bool]:
        desk = Desk(hand)
        return await asyncio.gather(*(desk.asked(f"job-{n}") for n in range(1000)))

    assert asyncio.run(run()) == [False] * 1000
    assert looks == ["asked"]


def test_each_hears_of_its_own_job_at_the_next_look_and_until_it_is_answered(ledger: Ledger) -> None:
    hand = Hand()
    ledger.record_job(NewJob(OTHER, "default", "digits", "train_model", OTHER, MANIFEST, "ada"))

    async def run() -> None:
        desk = Desk(hand)
        assert not await desk.asked(JOB)
        request = ledger.request(JOB, "halt", "ada")
        assert not await desk.asked(JOB)
        hand.now += LOOK_SECONDS
        assert await desk.asked(JOB)
        assert not await desk.asked(OTHER)
        ledger.answer(JOB, request.seq, "halted")
        hand.now += LOOK_SECONDS
        assert not await desk.asked(JOB)

    asyncio.run(run())


def test_a_cancellation_is_heard_of(ledger: Ledger) -> None:
    ledger.request(JOB, "cancel", "ada")
    assert asyncio.run(Desk(Hand()).asked(JOB))


def test_the_ledger_hears_who_is_guarded_at_once_and_then_every_ten_seconds(ledger: Ledger) -> None:
    hand = Hand()

    def seen() -> tuple[object, object]:
        job = ledger.job(JOB)
        return job.guardian_seen_at is not None, job.guardian_what

    async def run() -> None:
        desk = Desk(hand)
        await desk.asked(JOB)
        assert seen() == (False, None)
        hand.now += LOOK_SECONDS
        with desk.guarding(JOB, "train: watching attempt 1"):
            await desk.asked(OTHER)
            assert seen() == (True, "train: watching attempt 1")
        hand.now += 2 * TOUCH_SECONDS
        first = ledger.job(JOB).guardian_seen_at
        await desk.asked(JOB)
        assert ledger.job(JOB).guardian_seen_at == first, "nobody guards it any more"

    asyncio.run(run())


def test_a_ledger_that_is_away_is_asked_once_a_second_and_all_are_told(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand, asked = Hand(), []

    def away(_guarded: dict[str, str]) -> frozenset[str]:
        asked.append(hand.now)
        raise UnavailableError("the ledger is away")

    async def run() -> None:
        desk = Desk(hand)
        with monkeypatch.context() as broken:
            broken.setattr(desk_module, "_ask", away)
            for _ in range(5):
                with pytest.raises(UnavailableError):
                    await desk.asked(JOB)
        hand.now += LOOK_SECONDS
        assert not await desk.asked(JOB)

    asyncio.run(run())
    assert asked == [50.0]


def test_few_look_as_often_as_they_like_and_many_in_turn() -> None:
    pace = Pace(least_seconds=4.0, most_per_second=5.0)
    with pace.joined():
        assert pace.seconds == 4.0
        others = [pace.joined() for _ in range(999)]
        for other in others:
            other.__enter__()
        assert pace.seconds == 200.0
        for other in others:
            other.__exit__(None, None, None)
        assert pace.seconds == 4.0
