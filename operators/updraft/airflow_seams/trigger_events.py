"""The seam `trigger_events`: Airflow's triggerer hands over a trigger's event when the trigger has ended.

Airflow's loop hands events over, takes new triggers and cancels old ones once per second, so that each job loses half a
second at each of its waits. Here a trigger's end ends that pause. Called by
`stack.airflow_triggerer`.
"""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import anyio
from airflow.jobs import triggerer_job_runner

from updraft.airflow_seams.switch import applies

TURN_SECONDS = 0.1  # at least, between two turns of the loop: what ends together is handed over together
CANCEL_SECONDS = 1.0  # Airflow's own pace


class Pause:
    """What the loop waits for, at most a second per turn, in place of an `anyio.Event`: a trigger's end sets it too."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await asyncio.sleep(TURN_SECONDS)
        await self._event.wait()
        self._event.clear()  # who stops the loop sets a flag as well, which is what it looks at


class PromptTriggerRunner(triggerer_job_runner.TriggerRunner):
    """Airflow's, with a pause that ends with the end of a trigger."""

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
            self.to_cancel.clear()  # each answer of the supervisor names them again, until they have gone
        elif self.to_cancel:
            self._cancelled_at = time.monotonic()
            await super().cancel_triggers()  # type: ignore[no-untyped-call]


def install(runner: Any = triggerer_job_runner) -> bool:
    """Change this process, and the one that it forks for triggers; return whether that was done.

    runner: the module, which uses `anyio` for that pause only: it takes the loop's event and its limit from there.
    """
    if not applies("trigger_events"):
        return False
    runner.anyio = SimpleNamespace(Event=Pause, move_on_after=anyio.move_on_after)
    runner.TriggerRunner = PromptTriggerRunner
    return True
