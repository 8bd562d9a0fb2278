"""Define `Ledger`: the repositories of one database. Safe for several processes and threads; in an event loop, call it
with `asyncio.to_thread`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import datetime

from updraft.ledger.clock import clock_of
from updraft.ledger.engine import make_engine
from updraft.ledger.repositories import (
    Attempts,
    Checkpoints,
    IdempotencyRecords,
    Jobs,
    Leases,
    Notices,
    Outbox,
    Queue,
    Requests,
    Schedules,
    SeriesEvents,
    Tenants,
    Validations,
)

_open: dict[tuple[int, str], Ledger] = {}
_open_lock = threading.Lock()


def open_ledger(url: str) -> Ledger:
    """Return the ledger of this process. A forked child gets its own: database connections do not survive a fork."""
    key = (os.getpid(), url)
    with _open_lock:
        # The parent's entry stays in the child's dictionary: removing it would close connections that the parent uses.
        if key not in _open:
            _open[key] = Ledger(url)
        return _open[key]


def _new_lock_after_fork() -> None:
    global _open_lock
    _open_lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock_after_fork)


class Ledger:
    """The records of the platform in one database. Tests replace `clock`."""

    def __init__(self, url: str, *, clock: Callable[[], datetime] | None = None) -> None:
        self._engine = make_engine(url)
        self._clock = clock or clock_of(self._engine)
        opened = self._engine, self._clock
        self.jobs, self.requests, self.attempts = Jobs(*opened), Requests(*opened), Attempts(*opened)
        self.queue, self.leases, self.outbox = Queue(*opened), Leases(*opened), Outbox(*opened)
        self.series, self.schedules, self.notices = SeriesEvents(*opened), Schedules(*opened), Notices(*opened)
        self.tenants = Tenants(*opened)
        self.checkpoints, self.validations, self.idempotency = (
            Checkpoints(*opened),
            Validations(*opened),
            IdempotencyRecords(*opened),
        )

    def close(self) -> None:
        self._engine.dispose()

    def now(self) -> datetime:
        """Return the time (UTC) by the clock that all times of the ledger come from. Raises UnavailableError."""
        return self._clock()
