"""A job that waits for MLflow goes on when it answers, or when there is nothing to wait for any more."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from outside import Outside
from unit.triggers.trigger_helpers import JOB, events

from updraft.ledger import Ledger
from updraft.triggers.tracking import TrackingTrigger


class Mlflow:
    """Its REST API, which does not answer at first."""

    def __init__(self, away: int) -> None:
        self.away, self.asked = away, 0

    def get(self, _path: str, _query: dict[str, object]) -> SimpleNamespace:
        self.asked += 1
        return SimpleNamespace(status=503 if self.asked <= self.away else 200)


def look(outside: Outside, mlflow: Mlflow) -> list[dict[str, str]]:
    outside.run = lambda _run_id: mlflow
    outside.timing = replace(outside.timing, mlflow_seconds=0.0)
    return asyncio.run(events(TrackingTrigger(job_id=JOB)))


@pytest.mark.usefixtures("ledger")
def test_it_fires_once_mlflow_answers(outside: Outside) -> None:
    mlflow = Mlflow(away=3)
    assert look(outside, mlflow) == [{"kind": "again", "reason": "MLflow answers"}]
    assert mlflow.asked == 4


def test_it_fires_for_a_job_that_is_to_be_cancelled(ledger: Ledger, outside: Outside) -> None:
    ledger.requests.make(JOB, "cancel", "bob")
    mlflow = Mlflow(away=10**9)
    assert look(outside, mlflow) == [{"kind": "again", "reason": "the job is PENDING, or is to be cancelled"}]
    assert mlflow.asked == 0


def test_it_survives_its_triggerer() -> None:
    path, arguments = TrackingTrigger(job_id=JOB).serialize()
    assert (path, arguments) == ("updraft.triggers.tracking.TrackingTrigger", {"job_id": JOB})
