"""The queue, planned once and read once for all jobs of a triggerer that wait in it.

One planner at a time: of several triggerers the one that holds a lease in the ledger plans, when the queue or the
cluster's capacity has changed, and writes each job's place and reason into the ledger. Every triggerer reads the rows
that changed and wakes those triggers whose job is concerned. So a thousand jobs that wait cost little more than one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from updraft.allocation import Capacity, capacity_from_nodes
from updraft.exceptions import UnavailableError
from updraft.guardian.records import ledger
from updraft.kubernetes.nodes import nodes_of
from updraft.ledger import Admission, QueueNews
from updraft.settings import settings
from updraft.triggers.desk import desk

TURN_SECONDS = 0.25
AWAY_SECONDS = 1.0  # between turns while the ledger cannot be reached
LEASE = "planner"
LEASE_SECONDS = 6.0  # a planner that dies is replaced after this long
RENEW_SECONDS = 2.0
PLAN_SECONDS = 30.0  # planned again after this long in any case: a change that was not counted is not missed for ever
LOOK_SECONDS = 60.0  # a job that waits is looked at again after this long, whatever was or was not told

log = logging.getLogger(__name__)


class Place:
    """Of a job that waits: what its trigger has not heard yet."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._admission: Admission | None = None
        self._look = False

    def tell(self, admission: Admission | None) -> None:
        """The planner's decision, or None: the trigger must look at the job in the ledger."""
        self._admission, self._look = admission, self._look or admission is None
        self._news.set()

    async def news(self) -> Admission | None:
        """Waits for what is told next. None: look at the job in the ledger."""
        try:
            await asyncio.wait_for(self._news.wait(), LOOK_SECONDS)
        except TimeoutError:
            return None
        told = None if self._look else self._admission
        self._news.clear()
        self._admission, self._look = None, False
        return told


class Queue:
    """Of one event loop. It works while a job waits here."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._places: dict[str, Place] = {}
        self._work: asyncio.Task[None] | None = None
        self._owner = secrets.token_hex(8)
        self._leads = False
        self._renew_at = self._plan_at = 0.0
        self._basis: Capacity | str | None = None  # what was planned for, or why nobody can tell
        self._since: int | None = None

    @contextmanager
    def waiting(self, job_id: str, what: str) -> Iterator[Place]:
        """A place for a job of this process until it is left; the ledger shows `what` as the job's guardian."""
        mine = self._places[job_id] = Place()
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._run())
        try:
            with desk().guarding(job_id, what):
                yield mine
        finally:
            if self._places.get(job_id) is mine:
                del self._places[job_id]

    async def _run(self) -> None:
        away = False
        self._since = None
        try:
            while self._places:
                try:
                    await self._turn()
                    away = False
                except UnavailableError as exc:
                    if not away:
                        log.warning("The queue stands still: %s", exc)
                    away = True
                except Exception:
                    # The outermost line of the work: all jobs that wait in this process depend on the next turn.
                    log.exception("The queue could not be planned or read; trying again")
                    away = True
                await asyncio.sleep(AWAY_SECONDS if away else TURN_SECONDS)
        finally:
            if self._leads:
                self._leads = False
                await asyncio.shield(asyncio.to_thread(_give_lease, self._owner))

    async def _turn(self) -> None:
        if self._clock() >= self._renew_at:
            self._leads = await asyncio.to_thread(_take_lease, self._owner)
            self._renew_at = self._clock() + RENEW_SECONDS
        if self._leads:
            await self._plan()
        news = await asyncio.to_thread(_news, self._since)
        asked = await desk().all_asked()
        for job_id, place in self._places.items():
            if job_id in asked or self._since is None:
                place.tell(None)
            elif job_id in news.admissions:
                place.tell(news.admissions[job_id])
        self._since = news.changes

    async def _plan(self) -> None:
        basis: Capacity | str
        try:
            basis = capacity_from_nodes(await nodes_of(settings().kubernetes_conn_id), settings().tolerations)
        except UnavailableError as exc:
            basis = str(exc)
        anew = basis != self._basis or self._clock() >= self._plan_at
        if await asyncio.to_thread(_plan, basis, anew):
            self._basis, self._plan_at = basis, self._clock() + PLAN_SECONDS


def _take_lease(owner: str) -> bool:
    return ledger().take_lease(LEASE, owner, LEASE_SECONDS)


def _give_lease(owner: str) -> None:
    ledger().give_lease(LEASE, owner)


def _plan(basis: Capacity | str, anew: bool) -> bool:
    """Plans if there is something to plan; whether it did."""
    if not anew and not ledger().plan_is_due():
        return False
    if isinstance(basis, str):
        ledger().hold_queue(basis)
    else:
        ledger().plan_queue(basis)
    return True


def _news(since: int | None) -> QueueNews:
    return ledger().queue_news(since)


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, Queue] = WeakKeyDictionary()


def queue() -> Queue:
    """That of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _queues.get(loop)
    if found is None:
        found = _queues[loop] = Queue()
    return found
