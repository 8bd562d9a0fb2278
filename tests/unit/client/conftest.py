from __future__ import annotations

from collections.abc import Iterator

import pytest
from unit.client.client_fakes import FakeAirflow, make_client

from updraft.client import Client


@pytest.fixture
def airflow() -> FakeAirflow:
    return FakeAirflow()


@pytest.fixture
def client(airflow: FakeAirflow) -> Iterator[Client]:
    with make_client(airflow) as made:
        yield made
