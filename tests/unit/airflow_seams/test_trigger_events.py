"""The triggerer's pause in Airflow's own loop, with everything of its runner but the supervisor that it talks to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from airflow.jobs import triggerer_job_runner
from airflow.triggers.base import BaseTrigger, TriggerEvent

from updraft.airflow_seams.trigger_events import TURN_SECONDS, Pause, PromptTriggerRunner, install

LONG_SECONDS = 3600.0  # of Airflow's pause here: whoever waits for its end does not see the end of the test
LIMIT_SECONDS = 30.0


class OneEvent(BaseTrigger):
    """Fires when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.fire = asyncio.Event()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.OneEvent", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await self.fire.wait()
        yield TriggerEvent("fired")


class Unsupervised(PromptTriggerRunner):
    """It keeps what it would have sent."""

    async def init_comms(self) -> None:
        self.comms_decoder = SimpleNamespace(_reader_task=asyncio.create_task(asyncio.Event().wait()))
        self.sent: asyncio.Queue[Any] = asyncio.Queue()

    async def asend(self, msg: Any) -> None:
        self.sent.put_nowait(msg)

    async def block_watchdog(self) -> None:
        pass


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Unsupervised:
    changed = SimpleNamespace()
    assert install(changed)
    assert changed.TriggerRunner is PromptTriggerRunner
    assert changed.anyio.move_on_after is anyio.move_on_after
    changed.anyio.move_on_after = lambda _: anyio.move_on_after(LONG_SECONDS)
    monkeypatch.setattr(triggerer_job_runner, "anyio", changed.anyio)  # the loop is a method of Airflow's own class
    return Unsupervised()


def start(runner: Unsupervised, number: int) -> OneEvent:
    trigger = OneEvent()
    runner.triggers[number] = {"name": str(number), "events": 0, "is_watcher": False}
    runner.triggers[number]["task"] = asyncio.create_task(runner.run_trigger(number, trigger))
    return trigger


async def limited(runner: Unsupervised, steps: Any) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        life = asyncio.create_task(runner.arun())
        await asyncio.sleep(0)
        await steps()
        runner._handle_signal(15, None)
        await life


def test_an_event_is_sent_when_its_trigger_has_ended_and_not_later(runner: Unsupervised) -> None:
    async def steps() -> None:
        first = await runner.sent.get()  # sent at the start; now it pauses
        assert first.events is None
        for number in (1, 2):  # what ended the pause once does so again
            trigger = start(runner, number)
            trigger.fire.set()
            told = await runner.sent.get()
            assert [(entry.trigger_id, entry.event.payload) for entry in told.events] == [(number, "fired")]
            assert told.finished == [number]  # with the event, or Airflow would start the trigger again, or cancel it
        assert runner.triggers == {}

    asyncio.run(limited(runner, steps))


def test_turns_keep_a_distance() -> None:
    """However many triggers end in a second, Airflow's loop, which looks at every trigger in each turn, stays calm."""

    async def turns() -> float:
        pause, loop = Pause(), asyncio.get_running_loop()
        began = loop.time()
        for _ in range(3):
            pause.set()
            await pause.wait()
        return loop.time() - began

    assert asyncio.run(turns()) >= 3 * TURN_SECONDS * 0.99  # its clock and its timers are not quite one


def test_a_stop_ends_the_pause(runner: Unsupervised) -> None:
    async def steps() -> None:
        await runner.sent.get()

    asyncio.run(limited(runner, steps))


def test_a_trigger_is_asked_to_go_at_most_once_in_a_second(runner: Unsupervised) -> None:
    asked: list[str] = []
    runner.triggers[7] = {"task": SimpleNamespace(cancel=asked.append)}

    def turn(*gone: int) -> int:
        runner.to_cancel.extend(gone)
        asyncio.run(runner.cancel_triggers())
        assert not runner.to_cancel  # a number that waits here may be another trigger's by then
        return len(asked)

    assert [turn(), turn(7), turn(7), turn(7)] == [0, 1, 1, 1]
    runner._cancelled_at -= 2.0
    assert turn(7) == 2
