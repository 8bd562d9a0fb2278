"""The commands `series` and `roll-back`."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from unit.cli.cli_fakes import Run
from unit.client.client_fakes import NOW, FakeAirflow

SUMMARY = {
    "tenant": "default",
    "name": "digits",
    "jobs": 2,
    "last_submitted_at": NOW,
    "model": "digits-cnn",
    "champion": "1",
}
EVENT = {"at": NOW, "kind": "rolled back", "version": "1", "over": "2", "by": "eve", "reason": "worse on customers"}
RUN = {
    "id": "digits-2",
    "state": "COMPLETED",
    "submitted_at": NOW,
    "code": "c0ffee0123456789",
    "data": [{"source": "s3://datasets/digits/", "tree": "da7a0123456789"}],
    "version": "2",
    "outcome": "promoted",
    "reason": "acc 0.9 >= 0.8",
}


@pytest.fixture
def sent(airflow: FakeAirflow) -> list[Any]:
    """The bodies of roll-backs."""
    found: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response | None:
        path = request.url.path.removeprefix("/updraft/api/v1/series")
        if path == "":
            return httpx.Response(200, json={"series": [SUMMARY]})
        if path == "/digits":
            assert request.url.params["tenant"] == "default"
            return httpx.Response(200, json={**SUMMARY, "previous": "4", "runs": [RUN], "events": [EVENT]})
        if path == "/digits/roll-back":
            found.append(json.loads(request.content))
            return httpx.Response(200, json={"message": "Version 1 of digits-cnn is the champion.", "event": EVENT})
        return None

    airflow.override = answer
    return found


def test_series_are_listed(sent: list[Any], run: Run) -> None:
    lines = run("series").out.splitlines()
    assert lines[-1].split()[:5] == ["digits", "default", "2", "digits-cnn", "v1"]
    assert json.loads(run("series", "--json").out)["series"][0]["champion"] == "1"


def test_a_series_shows_champion_jobs_and_roll_backs(sent: list[Any], run: Run) -> None:
    out = run("series", "digits").out
    assert "digits: 2 jobs; champion: digits-cnn v1; before it: version 4" in out
    assert "c0ffee01" in out
    assert "da7a0123" in out
    assert "v2 promoted" in out
    assert "worse on customers" in out
    assert json.loads(run("series", "digits", "--json").out)["previous"] == "4"


def test_a_roll_back_sends_the_reason_and_says_what_happened(sent: list[Any], run: Run) -> None:
    ran = run("roll-back", "digits", "--reason", "worse on customers", "--to", "1")
    assert (ran.code, ran.out) == (0, "Version 1 of digits-cnn is the champion.\n")
    assert sent == [{"version": "1", "model": None, "reason": "worse on customers"}]


def test_a_roll_back_needs_a_reason(sent: list[Any], run: Run) -> None:
    ran = run("roll-back", "digits")
    assert ran.code == 2
    assert "--reason" in ran.err
    assert sent == []


def test_schedules_are_listed_paused_and_unpaused(airflow: FakeAirflow, run: Run) -> None:
    schedule = {
        "tenant": "default",
        "series": "digits",
        "dag": "job_digits",
        "rule": {"cron": "0 3 * * *"},
        "reason": "no new data at s3://datasets/digits/",
        "next_at": NOW,
    }
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response | None:
        path = request.url.path.removeprefix("/updraft/api/v1")
        if path == "/schedules":
            return httpx.Response(200, json={"schedules": [schedule]})
        if path in ("/series/digits/pause", "/series/digits/unpause"):
            asked.append(path)
            return httpx.Response(200, json=schedule)
        return None

    airflow.override = answer
    assert "no new data at s3://datasets/digits/" in run("schedules").out
    assert run("schedules", "--pause", "digits").code == 0
    assert run("schedules", "--unpause", "digits", "--json").code == 0
    assert asked == ["/series/digits/pause", "/series/digits/unpause"]
