"""What every trigger of this process would ask of the ledger every second, asked once for all of them.

With a thousand jobs in one triggerer nearly all answers are "nothing": a trigger looks further only when something is
asked of its own job. The same look tells the ledger which jobs are guarded. Used by `updraft.triggers.gang` and
`updraft.triggers.observation`, in the triggerer's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from updraft.exceptions import UpdraftError
from updraft.guardian.records import ledger

LOOK_SECONDS = 1.0
TOUCH_SECONDS = 10.0  # how often the ledger hears that a job is guarded


class Desk:
    """Of one event loop. A look that failed is not repeated before its time either, however many ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._guarded: dict[str, str] = {}
        self._asked: frozenset[str] = frozenset()
        self._problem: UpdraftError | None = None
        self._next_look = self._next_touch = clock()

    @contextmanager
    def guarding(self, job_id: str, what: str) -> Iterator[None]:
        """Until it is left, the ledger shows `what` as the job's guardian."""
        self._guarded[job_id] = what
        self._next_touch = self._clock()
        try:
            yield
        finally:
            self._guarded.pop(job_id, None)

    async def asked(self, job_id: str) -> bool:
        """Whether somebody waits for this job to be halted, resumed or cancelled. Raises UpdraftError."""
        async with self._lock:
            if self._clock() >= self._next_look:
                await self._look()
        if self._problem is not None:
            raise self._problem
        return job_id in self._asked

    async def _look(self) -> None:
        guarded = dict(self._guarded) if self._clock() >= self._next_touch else {}
        try:
            self._asked = await asyncio.to_thread(_ask, guarded)
        except UpdraftError as exc:
            self._problem = exc
        else:
            self._problem = None
            if guarded:
                self._next_touch = self._clock() + TOUCH_SECONDS
        self._next_look = self._clock() + LOOK_SECONDS


def _ask(guarded: dict[str, str]) -> frozenset[str]:
    book = ledger()
    if guarded:
        book.touch_guardians(guarded)
    return book.asked()


_desks: WeakKeyDictionary[asyncio.AbstractEventLoop, Desk] = WeakKeyDictionary()


def desk() -> Desk:
    """That of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _desks.get(loop)
    if found is None:
        found = _desks[loop] = Desk()
    return found
