"""Wait for a round of sizes whose results are known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from updraft.services import UsesServices


class RoundTrigger(UsesServices, BaseTrigger):
    """Wait until the results of the oldest round that was not reported are known: what its changes brought.

    Fires `{"round": number}`.
    """

    def __init__(self) -> None:
        super().__init__()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "updraft.triggers.rounds.RoundTrigger", {}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while True:
            try:
                found = await asyncio.to_thread(self.services.ledger.queue.round_to_show)
            except Exception as exc:  # noqa: BLE001 - outermost line of the look: the next look tries again
                self.log.warning("The rounds of sizes are not known: %s: %s", type(exc).__name__, str(exc)[:200])
            else:
                if found:
                    yield TriggerEvent({"round": found[0].round})
                    return
            await asyncio.sleep(self.services.timing.reaper_seconds)
