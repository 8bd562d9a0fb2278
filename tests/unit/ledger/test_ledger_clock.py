"""One clock for all machines: the database's, however wrong a machine's own one is, and whoever sets it."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pytest

from updraft.exceptions import UnavailableError
from updraft.ledger import Ledger
from updraft.ledger.clock import ASK_SECONDS, SharedClock, utc_now

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Machine:
    """With a monotonic clock of its own, and a database whose machine has another."""

    def __init__(self, monotonic: float, database: Database) -> None:
        self.monotonic = monotonic
        self.clock = SharedClock(database.ask, lambda: self.monotonic)


class Database:
    def __init__(self) -> None:
        self.now, self.asked, self.away = NOON, 0, False

    def ask(self) -> datetime:
        if self.away:
            raise UnavailableError("away")
        self.asked += 1
        return self.now


def pass_time(seconds: float, database: Database, *machines: Machine) -> None:
    database.now += timedelta(seconds=seconds)
    for machine in machines:
        machine.monotonic += seconds


def test_all_machines_have_the_databases_time() -> None:
    database = Database()
    first, second = Machine(5.0, database), Machine(90_000.0, database)
    assert first.clock() == NOON
    pass_time(10, database, first, second)
    assert first.clock() == second.clock() == database.now
    pass_time(ASK_SECONDS - 5, database, first, second)
    assert first.clock() == second.clock() == database.now


def test_the_database_is_asked_once_a_minute() -> None:
    database = Database()
    machine = Machine(0.0, database)
    for _ in range(120):
        assert machine.clock() == database.now
        pass_time(1, database, machine)
    assert database.asked == 120 / ASK_SECONDS


def test_without_an_answer_no_time_is_made_up() -> None:
    database = Database()
    machine = Machine(0.0, database)
    database.away = True
    with pytest.raises(UnavailableError):
        machine.clock()
    database.away = False
    assert machine.clock() == NOON


def test_the_ledgers_own_clock_is_that_of_its_database(ledger_url: str) -> None:
    book = Ledger(ledger_url)
    try:
        assert isinstance(book._clock, SharedClock) is bool(os.environ.get("UPDRAFT_TEST_POSTGRES"))
        before, now, after = utc_now(), book.now(), utc_now()  # tests have their database on the same machine
        assert before - timedelta(seconds=1) < now < after + timedelta(seconds=1)
        assert now.utcoffset() == timedelta(0)
    finally:
        book.close()
