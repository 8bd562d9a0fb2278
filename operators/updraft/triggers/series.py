"""Watch a series whose schedule has conditions: an asset's watcher, whose events start the series' DAG."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from updraft.controller.schedules import Watched, look_at
from updraft.exceptions import UpdraftError
from updraft.ledger import SeriesEvent
from updraft.services import UsesServices
from updraft_learner.backoff import Backoff

RETELL = Backoff(60.0, 3_600.0)  # until Airflow is told again of a firing that no job has taken


class SeriesTrigger(UsesServices, BaseEventTrigger):
    """Fire when the schedule of a series says so.

    Args:
        tenant: Tenant of the series.
        series: Its name, which is the manifest's.
        dag_id: The DAG that its events start.
        rule: The manifest's section `schedule`.
        model: The registered model of its jobs; None if they register nothing.

    Fires `{"fired": key, "reason": text}`, the key of the firing in the ledger, and again while no job has taken it:
    Airflow may have been killed before it stored the event.
    """

    def __init__(self, *, tenant: str, series: str, dag_id: str, rule: Mapping[str, Any], model: str | None) -> None:
        super().__init__()
        self.tenant = tenant
        self.series = series
        self.dag_id = dag_id
        self.rule = dict(rule)
        self.model = model

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {
            "tenant": self.tenant,
            "series": self.series,
            "dag_id": self.dag_id,
            "rule": self.rule,
            "model": self.model,
        }
        return "updraft.triggers.series.SeriesTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        watched = Watched(self.tenant, self.series, self.dag_id, self.rule, self.model)
        told: str | None = None
        times, due = 0, 0.0
        loop = asyncio.get_running_loop()
        while True:
            fired = await self._look(watched)
            if fired is not None and (fired.key != told or loop.time() >= due):
                times = times + 1 if fired.key == told else 1
                told, due = fired.key, loop.time() + RETELL.seconds(times)
                self.log.info("Series %s fires: %s", self.series, fired.reason)
                yield TriggerEvent({"fired": fired.key, "reason": fired.reason})
            await asyncio.sleep(self.services.timing.schedule_seconds)

    async def _look(self, watched: Watched) -> SeriesEvent | None:
        try:
            return await asyncio.to_thread(look_at, self.services, watched)
        except UpdraftError as exc:  # the ledger does not answer: look again
            self.log.warning("Whether series %s fires is not known: %s", self.series, exc)
            return None
