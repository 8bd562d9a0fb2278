"""Provide named locks for work outside the ledger (moving an alias, for instance), as leases in the table `locks`.

No transaction stays open while the work runs, so no other process is blocked. If the holder of a lock dies, its lease
runs out: work under a lock must be shorter than the lease, or safe to do twice.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from sqlalchemy import Engine, insert, select, update
from sqlalchemy.exc import IntegrityError

from updraft.exceptions import UnavailableError
from updraft.ledger import bounds
from updraft.ledger.engine import writing
from updraft.ledger.tables import NAME_LENGTH, locks

LEASE_SECONDS = 120.0
WAIT_SECONDS = 180.0  # longer than a lease, so that waiting outlasts a dead holder
RETRY_SECONDS = 0.2
_PREFIX = "lease:"


@contextmanager
def lease(
    engine: Engine,
    name: str,
    clock: Callable[[], datetime],
    *,
    lease_seconds: float,
    wait_seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Wait for the lock and hold it until the block is left. Raises UnavailableError after `wait_seconds`."""
    owner = secrets.token_hex(16)
    deadline = time.monotonic() + wait_seconds
    while not take_lease(engine, name, owner, clock(), lease_seconds):
        if time.monotonic() >= deadline:
            raise UnavailableError(f"lock: {name!r} was held by another for {wait_seconds:g} seconds; try again")
        sleep(RETRY_SECONDS)
    try:
        yield
    finally:
        give_lease(engine, name, owner)


def take_lease(engine: Engine, name: str, owner: str, now: datetime, lease_seconds: float) -> bool:
    """Take the lock, or renew it for its owner. Returns False while another owner holds it."""
    key = _key(name)
    values = {"owner": owner, "expires_at": now + timedelta(seconds=lease_seconds)}
    with writing(engine) as connection:
        row = connection.execute(select(locks).where(locks.c.name == key).with_for_update()).one_or_none()
        if row is None:
            try:
                with connection.begin_nested():
                    connection.execute(insert(locks).values(name=key, **values))
            except IntegrityError:
                return False  # another process inserted the row at the same moment
            return True
        if row.owner not in (None, owner) and row.expires_at > now:
            return False
        connection.execute(update(locks).where(locks.c.name == key).values(**values))
        return True


def give_lease(engine: Engine, name: str, owner: str) -> None:
    """Give the lock back, if it is this owner's."""
    with writing(engine) as connection:
        mine = (locks.c.name == _key(name)) & (locks.c.owner == owner)
        connection.execute(update(locks).where(mine).values(owner=None, expires_at=None))


def _key(name: str) -> str:
    return _PREFIX + bounds.identifier("lock", name, NAME_LENGTH - len(_PREFIX))
