from __future__ import annotations

import pytest
from unit.cli.cli_fakes import Run, make_runner
from unit.client.client_fakes import FakeAirflow


@pytest.fixture
def airflow() -> FakeAirflow:
    return FakeAirflow()


@pytest.fixture
def run(airflow: FakeAirflow, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("UPDRAFT_PROGRAM", "updraft")
    return make_runner(airflow, monkeypatch)
