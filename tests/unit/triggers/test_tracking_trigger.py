"""A job that waits for MLflow goes on when it answers, or when there is nothing to wait for any more."""

from __future__ import annotations

import asyncio

import pytest
from unit.triggers.trigger_helpers import JOB, events

from updraft.exceptions import UnavailableError
from updraft.ledger import Ledger
from updraft.services import Services
from updraft.triggers import tracking
from updraft.triggers.tracking import TrackingTrigger


class Mlflow:
    def __init__(self, away: int) -> None:
        self.away, self.asked = away, 0

    def require(self, _services: Services) -> None:
        self.asked += 1
        if self.asked <= self.away:
            raise UnavailableError("MLflow does not answer")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "POLL_SECONDS", 0.0)


def look(monkeypatch: pytest.MonkeyPatch, mlflow: Mlflow) -> list[dict[str, str]]:
    monkeypatch.setattr(tracking, "require_tracking", mlflow.require)
    return asyncio.run(events(TrackingTrigger(job_id=JOB)))


@pytest.mark.usefixtures("ledger", "quick")
def test_it_fires_once_mlflow_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = Mlflow(away=3)
    assert look(monkeypatch, mlflow) == [{"kind": "again", "reason": "MLflow answers"}]
    assert mlflow.asked == 4


@pytest.mark.usefixtures("quick")
def test_it_fires_for_a_job_that_is_to_be_cancelled(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.requests.make(JOB, "cancel", "bob")
    mlflow = Mlflow(away=10**9)
    assert look(monkeypatch, mlflow) == [{"kind": "again", "reason": "the job is PENDING, or is to be cancelled"}]
    assert mlflow.asked == 0


def test_it_survives_its_triggerer() -> None:
    path, arguments = TrackingTrigger(job_id=JOB).serialize()
    assert (path, arguments) == ("updraft.triggers.tracking.TrackingTrigger", {"job_id": JOB})
