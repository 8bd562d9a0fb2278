"""Ask the ledger once per second for what all triggers of this process need to know.

With a thousand jobs in one triggerer, nearly all answers are "no request": a trigger reads more only if there is a
request to its own job. The poller also tells the ledger which jobs have a controller. Used by `updraft.triggers.gang`,
`updraft.triggers.attempt_monitor` and `updraft.triggers.queue`, in the triggerer's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from updraft.exceptions import UnavailableError, UpdraftError
from updraft.services import Services

TOUCH_SECONDS = 10.0  # how often the ledger is told that a job has a controller

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Guard:
    what: str


class RequestPoller:
    """The poller of one event loop. A failed or hanging request is not repeated early, however many triggers ask."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._clock = services.timing.clock
        self._guarded: dict[str, _Guard] = {}
        self._asked: frozenset[str] = frozenset()
        self._generations: dict[tuple[str, str], int] = {}
        self._problem: UpdraftError | None = None
        self._look: asyncio.Task[None] | None = None
        self._touch: asyncio.Task[None] | None = None
        self._next_look = self._next_touch = self._clock()

    @contextmanager
    def guarding(self, job_id: str, what: str) -> Iterator[None]:
        """Let the ledger show `what` as the job's controller until the block is left."""
        mine = self._guarded[job_id] = _Guard(what)
        self._next_touch = self._clock()
        try:
            yield
        finally:
            if self._guarded.get(job_id) is mine:
                del self._guarded[job_id]

    async def asked(self, job_id: str) -> bool:
        """Return whether a user waits for this job to be halted, resumed or cancelled. Raises UpdraftError."""
        return job_id in await self.all_asked()

    async def all_asked(self) -> frozenset[str]:
        """Return the jobs that users wait for to be halted, resumed or cancelled. Raises UpdraftError."""
        await self._looked()
        return self._asked

    async def generation(self, job_id: str, role: str) -> int:
        """Return the generation of the members of the role's open attempt. Raises UpdraftError."""
        await self._looked()
        return self._generations.get((job_id, role), 1)

    async def _looked(self) -> None:
        if _idle(self._touch) and self._guarded and self._clock() >= self._next_touch:
            self._next_touch = self._clock() + TOUCH_SECONDS
            self._touch = asyncio.create_task(self._tell_who_guards())
        if self._look is None or (self._look.done() and self._clock() >= self._next_look):
            self._look = asyncio.create_task(self._ask())
        await asyncio.wait({self._look}, timeout=self._services.timing.ledger_patience_seconds)
        if not self._look.done():
            raise UnavailableError("the ledger does not answer")
        if self._problem is not None:
            raise self._problem

    async def _ask(self) -> None:
        try:
            self._asked, self._generations = await asyncio.to_thread(self._read)
            self._problem = None
        except UpdraftError as exc:
            self._problem = exc
        except Exception as exc:  # outermost line of the look: all jobs of the process depend on the next one
            log.exception("The ledger could not be asked")
            self._problem = UnavailableError(f"the ledger could not be asked ({type(exc).__name__})")
        finally:
            self._next_look = self._clock() + self._services.timing.requests_seconds

    def _read(self) -> tuple[frozenset[str], dict[tuple[str, str], int]]:
        ledger = self._services.ledger
        return ledger.requests.asked(), ledger.attempts.changed_members()

    async def _tell_who_guards(self) -> None:
        """Write the controllers of jobs to the ledger, apart from reading requests: a job's row may be locked."""
        try:
            guarded = {job_id: guard.what for job_id, guard in self._guarded.items()}
            await asyncio.to_thread(lambda: self._services.ledger.jobs.touch_all(guarded))
        except Exception as exc:  # noqa: BLE001 - it is tried again soon, and the reaper waits much longer
            log.warning("The ledger could not be told which jobs are guarded: %s", exc)
            self._next_touch = self._clock() + self._services.timing.requests_seconds


def _idle(task: asyncio.Task[None] | None) -> bool:
    return task is None or task.done()


_desks: WeakKeyDictionary[asyncio.AbstractEventLoop, RequestPoller] = WeakKeyDictionary()


def request_poller(services: Services) -> RequestPoller:
    """Return the poller of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _desks.get(loop)
    if found is None:
        found = _desks[loop] = RequestPoller(services)
    return found
