"""Provide the ledger's time, which all machines share.

Times written by one machine are compared on another. With local clocks, leases, delays before a launch and run time
limits would depend on how well the clocks of Airflow's machines agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, func, select

from updraft.ledger.engine import reading

ASK_SECONDS = 60.0  # the clocks of two machines drift apart by some milliseconds in this time


def utc_now() -> datetime:
    return datetime.now(UTC)


def clock_of(engine: Engine) -> Callable[[], datetime]:
    """Return the time of the database's machine. All that share a SQLite file are on one machine, whose own clock it
    is."""
    if engine.dialect.name == "sqlite":
        return utc_now

    def ask() -> datetime:
        with reading(engine) as connection:
            told: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
        return told.astimezone(UTC)

    return SharedClock(ask)


class SharedClock:
    """A clock that calls `ask` once a minute and in between counts on with this machine's monotonic clock, which cannot
    be set. Raises what `ask` raises."""

    def __init__(self, ask: Callable[[], datetime], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._monotonic = ask, monotonic
        self._known: tuple[datetime, float] | None = None

    def __call__(self) -> datetime:
        known, now = self._known, self._monotonic()
        if known is None or now - known[1] >= ASK_SECONDS:
            told = self._ask()
            self._known = known = (told, now := self._monotonic())
        told, then = known
        return told + timedelta(seconds=now - then)
