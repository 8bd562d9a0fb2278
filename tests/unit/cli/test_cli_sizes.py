"""The command `sizes`."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from unit.cli.cli_fakes import Run
from unit.client.client_fakes import NOW, FakeAirflow

CHANGE = {
    "job": "cats-1",
    "name": "cats",
    "tenant": "default",
    "before": 2,
    "before_batch": 64,
    "after": 4,
    "after_batch": 128,
    "reason": "4 learners instead of 2",
    "expected": 1.8,
    "gained": 1.624,
    "pause_seconds": 75.0,
    "waits": False,
}
OPEN = {"gained": None, "pause_seconds": None}
WAITS = {**CHANGE, **OPEN, "job": "words-1", "before_batch": 128, "waits": True}
STARTS = {**CHANGE, **OPEN, "job": "dogs-1", "before": 0, "before_batch": None, "expected": None}
UNKNOWN = {**CHANGE, **OPEN, "job": "cows-1", "before_batch": None, "after_batch": None}
ROUNDS = [
    {"round": 12, "at": NOW, "changes": [CHANGE, WAITS]},
    {"round": 9, "at": NOW, "changes": [UNKNOWN]},
    {"round": 7, "at": NOW, "changes": [STARTS]},
]


@pytest.fixture
def rounds(airflow: FakeAirflow) -> list[dict[str, Any]]:
    """The platform's rounds, newest first."""
    found: list[dict[str, Any]] = [*ROUNDS]

    def answer(request: httpx.Request) -> httpx.Response | None:
        return httpx.Response(200, json={"rounds": found}) if request.url.path == "/updraft/api/v1/sizes" else None

    airflow.override = answer
    return found


def cells(out: str) -> dict[str, list[str]]:
    """What stands behind each job."""
    lines = [line.split() for line in out.splitlines()]
    return {line[0]: line[1:] for line in lines if line and line[0].endswith("-1")}


@pytest.mark.usefixtures("rounds")
def test_rounds_are_listed_the_newest_last(run: Run) -> None:
    out = run("sizes").out
    titles = [line.split(",")[0] for line in out.splitlines() if line.startswith("Round")]
    assert titles == ["Round 7", "Round 9", "Round 12"]
    found, reason = cells(out), CHANGE["reason"].split()  # type: ignore[attr-defined]
    assert list(found) == ["dogs-1", "cows-1", "cats-1", "words-1"]
    assert found["cats-1"] == ["2", "→", "4", "64", "→", "128", "x", "1.80", "x", "1.62", "75", "s", *reason]
    assert found["words-1"] == ["2", "→", "4", "128", "x", "1.80", "waits", *reason]
    assert found["cows-1"] == ["2", "→", "4", "x", "1.80", "no", *reason]
    assert found["dogs-1"] == ["starts", "with", "4", "128", *reason]


@pytest.mark.usefixtures("rounds")
def test_so_many_of_the_newest_rounds_are_listed(run: Run) -> None:
    assert list(cells(run("sizes", "--rounds", "1").out)) == ["cats-1", "words-1"]
    assert run("sizes", "-n", "0").code == 2


@pytest.mark.usefixtures("rounds")
def test_rounds_are_printed_as_json_the_newest_first(run: Run) -> None:
    found = json.loads(run("sizes", "--json", "-n", "2").out)
    assert [each["round"] for each in found] == [12, 9]
    assert found[0]["changes"] == [CHANGE, WAITS]


def test_nothing_to_show_is_said(rounds: list[dict[str, Any]], run: Run) -> None:
    rounds.clear()
    assert run("sizes").out == "no elastic job has got another size yet\n"
    assert json.loads(run("sizes", "--json").out) == []
