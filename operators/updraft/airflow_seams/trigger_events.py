"""The seam `trigger_events`: Airflow's triggerer passes a trigger's event on as soon as the trigger has ended.

Airflow's loop passes events on, takes new triggers and cancels old ones once per second, so that each job loses half a
second at each wait. With this seam, the end of a trigger also ends the pause. Called by `stack.airflow_triggerer`.
"""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import anyio
from airflow.jobs import triggerer_job_runner

from updraft.airflow_seams.switch import applies

TURN_SECONDS = 0.1  # the least time between two turns of the loop: triggers that end together are handled together
CANCEL_SECONDS = 1.0  # Airflow's own pace


class Pause:
    """The pause of the triggerer's loop, at most a second, in place of an `anyio.Event`: a trigger's end ends it
    too."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await asyncio.sleep(TURN_SECONDS)
        await self._event.wait()
        self._event.clear()  # stopping the loop also sets a flag, which the loop checks itself


class PromptTriggerRunner(triggerer_job_runner.TriggerRunner):
    """Airflow's TriggerRunner, with a pause that the end of a trigger ends."""

    _cancelled_at = float("-inf")

    async def run_trigger(self, *args: Any, **kwargs: Any) -> None:
        try:
            await super().run_trigger(*args, **kwargs)
        finally:
            if self._stop_event is not None:
                self._stop_event.set()

    async def cancel_triggers(self) -> None:
        """Cancel at most once per second: a trigger that is cancelled again before it has ended loses the rest of its
        `on_kill`."""
        if time.monotonic() - self._cancelled_at < CANCEL_SECONDS:
            self.to_cancel.clear()  # the supervisor names these again in each answer until they have ended
        elif self.to_cancel:
            self._cancelled_at = time.monotonic()
            await super().cancel_triggers()  # type: ignore[no-untyped-call]


def install(runner: Any = triggerer_job_runner) -> bool:
    """Change this process, and the one that it forks for triggers; return whether it was changed.

    runner: the module of Airflow's triggerer. It uses `anyio` only for the loop's event and the limit of its wait.
    """
    if not applies("trigger_events"):
        return False
    runner.anyio = SimpleNamespace(Event=Pause, move_on_after=anyio.move_on_after)
    runner.TriggerRunner = PromptTriggerRunner
    return True
