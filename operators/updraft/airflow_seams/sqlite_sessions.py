"""The seam `sqlite_sessions` (`[database] sql_alchemy_session_maker`): no session waits for SQLite on the event loop.

The api-server writes its audit log on its event loop. It also deletes expired revoked tokens there, at the first
request after its start and every few hours. While the loop waits for SQLite's write lock, the whole server stands
still. If a request holds that lock, it stands still too, because the same loop has to start its commit. Then these two,
and every other process that writes, wait until one of them times out. Therefore a separate thread makes these changes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from sqlalchemy import Delete, Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

from updraft.airflow_seams.switch import applies

TRIES = 5
PAUSE_SECONDS = 1.0

log = logging.getLogger(__name__)


def session_maker(engine: Engine) -> sessionmaker[Any]:
    """Return what makes Airflow's sessions, with Airflow's own arguments: a LoopSession if the seam applies."""
    made = LoopSession if applies("sqlite_sessions") else Session
    return sessionmaker(engine, class_=made, autoflush=False, expire_on_commit=False)


class LoopSession(Session):
    """A session that leaves some changes to a thread instead of waiting for them on an event loop."""

    def execute(self, statement: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_cleanup(statement) and _on_event_loop():
            _writer().submit(write, self.get_bind(), "expired tokens", lambda session: session.execute(statement))
            return None  # Airflow does not use the result
        return super().execute(statement, *args, **kwargs)

    def commit(self) -> None:
        rows = list(self.new)
        if rows and _on_event_loop() and all(map(_is_audit, rows)) and not self.dirty and not self.deleted:
            for row in rows:
                self.expunge(row)
            what = f"{len(rows)} row(s) of the audit log"
            _writer().submit(write, self.get_bind(), what, lambda session: session.add_all(rows))
        super().commit()


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _is_audit(row: object) -> bool:
    """Return whether `row` belongs to the audit log: nothing that is read after the commit depends on such a row, so it
    may be written later."""
    return getattr(row, "__tablename__", None) == "log"


def _is_cleanup(statement: object) -> bool:
    return isinstance(statement, Delete) and getattr(statement.table, "name", None) == "revoked_token"


@cache
def _writer() -> ThreadPoolExecutor:
    """Return an executor with one thread, so that rows keep their order. It writes what waits before the process
    ends."""
    return ThreadPoolExecutor(1, thread_name_prefix="sqlite-writer")


def write(bind: Any, what: str, change: Callable[[Session], object], pause_seconds: float = PAUSE_SECONDS) -> None:
    """Make and commit a change, in several tries; a failure is logged with `what`, and loses it."""
    for number in range(1, TRIES + 1):
        try:
            with Session(bind, expire_on_commit=False) as session:
                change(session)
                session.commit()
            return
        except OperationalError as exc:
            if number == TRIES:
                log.error("%s could not be written: %s", what, exc.orig)
                return
            time.sleep(pause_seconds)
        except Exception:  # outermost line of the thread
            log.exception("%s could not be written", what)
            return
