"""Plan the queue, and read it once for all jobs of a triggerer that wait in it.

There is one planner at a time: the triggerer that holds a lease in the ledger. It plans when the queue or the cluster's
capacity has changed, and writes each job's place and reason into the ledger. Every triggerer reads the rows that
changed, and wakes only the triggers of these jobs. So a thousand waiting jobs cost little more than one.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from updraft.allocation import Capacity
from updraft.controller import queueing
from updraft.exceptions import UnavailableError
from updraft.kubernetes.capacity import capacity_of
from updraft.ledger import Admission, QueueNews
from updraft.services import Services
from updraft.timing import Timing
from updraft.triggers.request_poller import request_poller

T = TypeVar("T")
LEASE = "planner"
LEASE_SECONDS = 6.0  # after this time, another triggerer replaces a dead planner
RENEW_SECONDS = 2.0
TRY_SECONDS = 0.5  # between two tries of a triggerer to get the lease
PLAN_SECONDS = 30.0  # the planner plans at least this often, in case a change was not counted
LOOK_SECONDS = 300.0  # a waiting job is checked at least about this often, whatever the news
# Many triggers that check their jobs at once fill the loop's own threads; planning and reading must not wait for them.
THREADS = ThreadPoolExecutor(max_workers=3, thread_name_prefix="queue")

log = logging.getLogger(__name__)


class WaitingJob:
    """A waiting job, with the news that its trigger has not received yet."""

    def __init__(self, job_id: str, timing: Timing) -> None:
        self.job_id = job_id
        self._timing = timing
        self._news = asyncio.Event()
        self._admission: Admission | None = None
        self._look = False
        self._log_at = timing.clock() + timing.place_log_seconds * random.random()  # not all at the same moment

    async def look_again(self, to: Any, *, at_first_plan: bool, within_seconds: float | None = None) -> None:
        """Wait until the trigger must look at the job in the ledger.

        Meanwhile the job's place is logged, at most every `Timing.place_log_seconds`; the ledger always has the
        current one.

        Args:
            to: the trigger's logger.
            at_first_plan: nothing is planned for the job yet; it is looked at as soon as something is.
            within_seconds: after which it is looked at whatever the news; None: after a long time.
        """
        until = None if within_seconds is None else self._timing.clock() + within_seconds
        while (told := await self.news(until)) is not None and told.waits and not at_first_plan:
            if (now := self._timing.clock()) >= self._log_at:
                to.info("waiting: %s", told.reason)
                self._log_at = now + self._timing.place_log_seconds

    def tell(self, admission: Admission | None) -> None:
        """Set the planner's decision; None: the trigger must look at the job in the ledger."""
        self._admission, self._look = admission, self._look or admission is None
        self._news.set()

    async def news(self, until: float | None = None) -> Admission | None:
        """Wait for the next news, at most to a time of the clock. None: look at the job in the ledger."""
        seconds = LOOK_SECONDS * random.uniform(0.8, 1.2)  # not all at the same moment
        if until is not None:
            seconds = max(0.0, min(seconds, until - self._timing.clock()))
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return None
        told = None if self._look else self._admission
        self._news.clear()
        self._admission, self._look = None, False
        return told


class QueueReader:
    """The queue of one cluster in one event loop. It works while a job waits here, or an elastic one runs."""

    def __init__(self, services: Services, conn_id: str) -> None:
        self._services = services
        self._conn_id = conn_id
        self._timing = services.timing
        self._clock = services.timing.clock
        self._places: set[WaitingJob] = set()
        self._users: set[object] = set()  # who needs the queue to be planned
        self._work: asyncio.Task[None] | None = None
        self._planning: asyncio.Task[None] | None = None
        self._planned = asyncio.Event()  # set when there is a new plan to read
        self._owner = secrets.token_hex(8)
        self._leads = False
        self._renew_at = self._plan_at = 0.0
        self._nodes: list[dict[str, Any]] | None = None
        self._capacity = Capacity(())  # computed from `_nodes`
        self._basis: Capacity | str | None = None  # the capacity of the last plan, or the reason why it was unknown
        self._since: int | None = None
        self._asked: frozenset[str] | None = None

    @contextmanager
    def waiting(self, job_id: str, what: str) -> Iterator[WaitingJob]:
        """Give a job of this process its place; the ledger shows `what` as its controller until the block is left."""
        mine = WaitingJob(job_id, self._timing)
        with self.planned():
            self._places.add(mine)
            try:
                with request_poller(self._services).guarding(job_id, what):
                    yield mine
            finally:
                self._places.discard(mine)

    @contextmanager
    def planned(self) -> Iterator[None]:
        """Have the queue planned until the block is left, also if no job waits: an elastic one may get another size."""
        user = object()
        self._users.add(user)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._users.discard(user)

    async def _run(self) -> None:
        """Serve the jobs that wait here, holding the lease. A job that comes while the lease is released finds the loop
        still running."""
        while self._users:
            try:
                await self._serve()
            finally:
                await self._stop()

    async def _serve(self) -> None:
        """Serve until nobody needs it."""
        away = False
        self._since = self._asked = None
        while self._users:
            try:
                await self._turn()
                away = False
            except UnavailableError as exc:
                if not away:
                    log.warning("The queue stands still: %s", exc)
                away = True
            except Exception:
                # Outermost line of the work: all jobs that wait in this process depend on the next turn.
                log.exception("The queue could not be read; trying again")
                away = True
            await self._pause(self._timing.queue_away_seconds if away else self._timing.queue_turn_seconds)

    async def _pause(self, seconds: float) -> None:
        """Wait until the next turn, which comes at once after a plan: a granted job does not wait longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._planned.wait()
        self._planned.clear()

    async def _stop(self) -> None:
        if self._planning is not None:
            self._planning.cancel()
        leads, self._leads, self._renew_at = self._leads, False, 0.0
        if leads:
            try:
                await asyncio.shield(_call(_give_lease, self._services, self._owner))
            except Exception as exc:  # noqa: BLE001 - the lease expires by itself
                log.warning("The planner's lease was not given back: %s", exc)

    async def _turn(self) -> None:
        if self._clock() >= self._renew_at:
            led, self._leads = self._leads, await _call(_take_lease, self._services, self._owner)
            self._renew_at = self._clock() + (RENEW_SECONDS if self._leads else TRY_SECONDS)
            if self._leads and not led:
                self._basis = None  # in the meantime another planner may have planned, and for other nodes
        # Separate from the reading: a cluster that does not answer must not delay users' requests.
        if self._leads and (self._planning is None or self._planning.done()):
            self._planning = asyncio.create_task(self._plan())
        news = await _call(_news, self._services, self._since)
        asked = await request_poller(self._services).all_asked()
        look = asked if asked is not self._asked else frozenset()
        for place in self._places:
            if place.job_id in look or self._since is None:
                place.tell(None)
            elif place.job_id in news.admissions:
                place.tell(news.admissions[place.job_id])
        self._since, self._asked = news.changes, asked

    async def _plan(self) -> None:
        try:
            basis = await self._look_at_cluster()
            anew = basis != self._basis or self._clock() >= self._plan_at
            if await _call(_plan, self._services, basis, anew):
                self._basis, self._plan_at = basis, self._clock() + PLAN_SECONDS
                self._planned.set()
        except UnavailableError:
            pass  # the reading reports it
        except Exception:
            log.exception("The queue could not be planned; trying again")
            await asyncio.sleep(self._timing.queue_away_seconds)

    async def _look_at_cluster(self) -> Capacity | str:
        """Return the cluster's capacity, or why it is unknown."""
        try:
            nodes = await self._services.list_nodes(self._conn_id)
        except UnavailableError as exc:
            return str(exc)
        if nodes is not self._nodes or self._services.settings.scalable_pools:  # these may have windows
            self._nodes, self._capacity = nodes, capacity_of(nodes, self._services.settings)
        return self._capacity


async def _call(function: Callable[..., T], *args: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(THREADS, function, *args)


def _take_lease(services: Services, owner: str) -> bool:
    return services.ledger.leases.take(LEASE, owner, LEASE_SECONDS)


def _give_lease(services: Services, owner: str) -> None:
    services.ledger.leases.give(LEASE, owner)


def _plan(services: Services, basis: Capacity | str, anew: bool) -> bool:
    """Plan if there is something to plan; return whether there was."""
    if not anew and not services.ledger.queue.plan_is_due():
        return False
    if isinstance(basis, str):
        services.ledger.queue.hold(basis)
    else:
        queueing.decide(services, basis)
        if anew:  # at times, and not at each plan: it costs many plans
            queueing.estimate(services, basis)
    return True


def _news(services: Services, since: int | None) -> QueueNews:
    return services.ledger.queue.news(since)


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, QueueReader]] = WeakKeyDictionary()


def queue(services: Services, conn_id: str) -> QueueReader:
    """Return the reader of the running event loop for the cluster of this connection."""
    queues = _queues.setdefault(asyncio.get_running_loop(), {})
    return queues.setdefault(conn_id, QueueReader(services, conn_id))
