"""The rounds of sizes: when the trigger fires, and which round it names."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from ledger_helpers import add_job, resize, run_elastic, train_resized
from outside import Instead, Outside
from structlog.testing import capture_logs
from unit.triggers.trigger_helpers import events

from updraft.exceptions import UnavailableError
from updraft.ledger import Ledger
from updraft.triggers.rounds import RoundTrigger


@pytest.fixture
def looks(ledger: Ledger, outside: Outside) -> list[Any]:
    """What the trigger has found at each look. Two jobs are being resized, and nothing older is to be reported."""
    found: list[Any] = []

    def round_to_show() -> Any:
        found.append(ledger.queue.round_to_show())
        return found[-1]

    for name in ("cats-1", "words-1"):
        add_job(ledger, name)
        run_elastic(ledger, name, 2, step_seconds=0.2)
    for row in ledger.queue.rounds(100, ("default",)):  # the jobs started in them
        ledger.queue.mark_shown(row.round)
    resize(ledger, {"cats-1": 4, "words-1": 4})
    outside.timing = replace(outside.timing, reaper_seconds=0.001)
    outside.ledger = Instead(ledger, queue=Instead(ledger.queue, round_to_show=round_to_show))
    return found


def newest(ledger: Ledger) -> int:
    return ledger.queue.rounds(1, ("default",))[0].round


async def waits(looks: list[Any], more: int = 5) -> None:
    """Let the trigger look some more."""
    until = len(looks) + more
    while len(looks) < until:
        await asyncio.sleep(0.001)


def fired() -> list[dict[str, Any]]:
    return asyncio.run(asyncio.wait_for(events(RoundTrigger()), 20))


def test_the_trigger_can_be_made_again() -> None:
    assert RoundTrigger().serialize() == ("updraft.triggers.rounds.RoundTrigger", {})


def test_a_round_is_reported_once_all_its_changes_are_measured(ledger: Ledger, looks: list[Any]) -> None:
    async def main() -> list[dict[str, Any]]:
        firing = asyncio.create_task(events(RoundTrigger()))
        await waits(looks)
        train_resized(ledger, "cats-1", 4, 0.25)
        await waits(looks)
        assert not firing.done()
        assert not any(looks)
        train_resized(ledger, "words-1", 4, 0.25)
        return await asyncio.wait_for(firing, 20)

    assert asyncio.run(main()) == [{"round": newest(ledger)}]


def test_a_change_that_cannot_be_measured_any_more_holds_nothing_up(ledger: Ledger, looks: list[Any]) -> None:
    train_resized(ledger, "cats-1", 4, 0.25)
    ledger.queue.release("words-1")
    assert fired() == [{"round": newest(ledger)}]


def test_the_oldest_round_whose_results_are_known_is_first(ledger: Ledger, looks: list[Any]) -> None:
    waited_for = newest(ledger)
    for name in ("dogs-1", "dogs-2"):
        add_job(ledger, name)
        run_elastic(ledger, name, 2)  # known at once
    second, first = (row.round for row in ledger.queue.rounds(2, ("default",)))
    for known in (first, second):
        assert fired() == [{"round": known}]
        ledger.queue.mark_shown(known)
    for name in ("cats-1", "words-1"):
        train_resized(ledger, name, 4, 0.25)
    assert fired() == [{"round": waited_for}]


def test_without_a_round_the_trigger_waits(ledger: Ledger, looks: list[Any]) -> None:
    ledger.queue.mark_shown(newest(ledger))

    async def main() -> list[dict[str, Any]]:
        firing = asyncio.create_task(events(RoundTrigger()))
        await waits(looks)
        add_job(ledger, "dogs-1")
        run_elastic(ledger, "dogs-1", 2)
        return await asyncio.wait_for(firing, 20)

    assert asyncio.run(main()) == [{"round": newest(ledger)}]


@pytest.mark.parametrize("error", [UnavailableError("the ledger is away"), KeyError("x" * 900)])
def test_a_ledger_that_is_away_is_logged_and_asked_again(
    ledger: Ledger, outside: Outside, looks: list[Any], error: Exception
) -> None:
    for job in ("cats-1", "words-1"):
        train_resized(ledger, job, 4, 0.25)
    failures = [error] * 3

    def away() -> Any:
        if failures:
            raise failures.pop()
        return ledger.queue.round_to_show()

    outside.ledger = Instead(ledger, queue=Instead(ledger.queue, round_to_show=away))
    with capture_logs() as logged:
        assert fired() == [{"round": newest(ledger)}]
    text = f"The rounds of sizes are not known: {type(error).__name__}: {str(error)[:200]}"
    assert [(each["log_level"], each["event"]) for each in logged] == [("warning", text)] * 3
