"""Follow the logs of one launch's learners into the store, each line once, and remember their last lines.

The whole log is read at a limited rate. When a container has ended, its last lines are also read at once, for the
verdict. If the reader does not reach them in time, they are recorded after a line that says how many lines are missing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from updraft.exceptions import UpdraftError
from updraft.kubernetes import logend, logs
from updraft.kubernetes.objects import Launch
from updraft.kubernetes.token_bucket import ALL_BYTES_PER_SECOND, ALL_LINES_PER_SECOND, TokenBucket
from updraft.kubernetes.watch import PodWatch
from updraft.recovery.facts import PodFacts
from updraft.timing import Timing
from updraft_learner import contract

if TYPE_CHECKING:
    from updraft.storage.objects import LogBook
    from updraft_learner.store import ObjectStore

Source = tuple[Any, str, str, str]  # API client, namespace, pod, container
LOG_CLOSE_SECONDS = 20.0  # for recording the last lines, after the time for the rest of the log
LOG_STOP_SECONDS = 8.0
END_ATTEMPTS = 4
TAIL_LINES = 100
ALL = TokenBucket(ALL_BYTES_PER_SECOND, ALL_LINES_PER_SECOND)  # shared by all logs of this process


class Followers:
    """The tasks that read the logs, one per learner. Lives in the triggerer's event loop."""

    def __init__(
        self,
        launch: Launch,
        open_store: Callable[[], ObjectStore],
        log: Any,
        *,
        timing: Timing,
        shared: TokenBucket | None = ALL,
    ) -> None:
        self._open_store, self._timing, self._shared = open_store, timing, shared
        self._launch, self._log = launch, log
        self._tails: dict[int, deque[str]] = {}
        self._ends: dict[int, list[str]] = {}  # last lines of containers that have ended
        self._followers: dict[int, tuple[asyncio.Task[None], asyncio.Event]] = {}
        self._failed: set[int] = set()
        self.lines: dict[int, int] = {}  # number of lines read so far, per learner

    @property
    def tails(self) -> dict[int, list[str]]:
        return {learner: list(lines) for learner, lines in self._tails.items()} | self._ends

    def follow(self, watch: PodWatch, pods: Sequence[PodFacts]) -> None:
        """Begin with every learner whose program has a log by now."""
        for pod in pods:
            if pod.main.state not in ("running", "terminated"):
                continue
            if pod.learner not in self._followers:
                finished = asyncio.Event()
                task = asyncio.create_task(self._follow(watch, pod.name, pod.learner, finished))
                self._followers[pod.learner] = (task, finished)
            if pod.main.state == "terminated":
                if pod.main.exit_code:
                    self._failed.add(pod.learner)
                self._followers[pod.learner][1].set()

    async def finish(self) -> None:
        """Give the followers of ended containers a bounded time to read the ends of the logs and to store them.

        Those of containers that still run would not end by themselves: what they have is stored by stopping them.
        """
        ended = [task for task, finished in self._followers.values() if finished.is_set()]
        if ended:
            await asyncio.wait(ended, timeout=self._timing.log_end_seconds + LOG_CLOSE_SECONDS)
        await self.stop()

    async def stop(self) -> None:
        tasks = [task for task, _ in self._followers.values()]
        self._followers.clear()
        for task in tasks:
            task.cancel()  # while it is cancelled, a follower stores the lines that it has
        if tasks:
            done, _ = await asyncio.wait(tasks, timeout=LOG_STOP_SECONDS)
            for task in done:
                if not task.cancelled() and (error := task.exception()) is not None:
                    self._log.warning("A learner's log could not be kept: %s", error)

    async def _follow(self, watch: PodWatch, pod: str, learner: int, finished: asyncio.Event) -> None:
        launch, tail = self._launch, self._tails.setdefault(learner, deque(maxlen=TAIL_LINES))
        source = (watch.api, launch.namespace, pod, contract.MAIN_CONTAINER)
        ending = asyncio.create_task(self._read_end(source, learner, finished))
        try:
            book = await self._open_book(learner)
            cursor = logs.Cursor(n=book.last.n, t=book.last.t, same=book.last.same)
            tail.extend(book.tail)
            await self._record(source, book, cursor, learner, finished)
            await self._close(source, book, cursor, learner, await ending)
        finally:
            ending.cancel()

    async def _open_book(self, learner: int) -> LogBook:
        from updraft.storage import objects

        launch = self._launch
        while True:
            try:
                return await asyncio.to_thread(
                    objects.LogBook.open,
                    launch.tenant,
                    launch.job_id,
                    launch.role,
                    launch.attempt,
                    learner,
                    store=self._open_store(),
                )
            except UpdraftError as exc:  # the place where an earlier trigger stopped must be known first
                self._log.warning("The log of learner %d is not read yet: %s", learner, exc)
                await asyncio.sleep(self._timing.log_retry_seconds)

    async def _record(
        self, source: Source, book: LogBook, cursor: logs.Cursor, learner: int, finished: asyncio.Event
    ) -> None:
        """Record the whole log, or what can be read of it until some time after the container's end."""
        flow = TokenBucket(shared=self._shared)

        async def write(chunk: list[logs.Line]) -> None:
            await asyncio.to_thread(_store, book, chunk)

        async def lines(at: logs.Cursor) -> AsyncIterator[logs.Line]:
            async for line in logs.follow(*source, at, flow):
                self._tell(learner, line)
                yield line

        recording = asyncio.create_task(logs.record(lines, cursor, write, finished=finished))
        waiting = asyncio.create_task(finished.wait())
        try:
            await asyncio.wait((recording, waiting), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((recording,), timeout=self._timing.log_end_seconds)
        finally:
            waiting.cancel()
            recording.cancel()  # while it is cancelled, it stores the lines that it has
            await asyncio.wait((recording,))
        if not recording.cancelled() and (error := recording.exception()) is not None:
            raise error

    async def _read_end(self, source: Source, learner: int, finished: asyncio.Event) -> Sequence[bytes]:
        """Return the last lines as soon as the container has ended; none if the cluster does not give them."""
        await finished.wait()
        for attempt in range(1, END_ATTEMPTS + 1):
            try:
                end = await logend.read_end(*source)
            except Exception as exc:  # noqa: BLE001 - the pod may be deleted, and the log is also read as a whole
                self._log.warning("The end of learner %d's log was not read: %s", learner, type(exc).__name__)
                if attempt < END_ATTEMPTS:
                    await asyncio.sleep(attempt)
            else:
                self._ends[learner] = logend.texts(end)
                await self._add_overtaken(source, learner)
                return end
        return ()

    async def _add_overtaken(self, source: Source, learner: int) -> None:
        """Add a failed program's traceback to its last lines, if the runtime put it before them."""
        if learner not in self._failed or any(line.endswith(logend.TRACEBACK) for line in self._ends[learner]):
            return
        try:
            self._ends[learner] += await logend.read_overtaken(*source)
        except Exception as exc:  # noqa: BLE001 - the last lines are there in any case
            self._log.warning("Learner %d's log was not searched for a traceback: %s", learner, type(exc).__name__)

    async def _close(
        self, source: Source, book: LogBook, cursor: logs.Cursor, learner: int, end: Sequence[bytes]
    ) -> None:
        """Record those of the last lines that the reader has not come to."""
        if not logend.lines_after(replace(cursor), end, None):
            return
        skipped = await logend.count_between(*source, cursor, end)
        rest = logend.lines_after(cursor, end, skipped)
        for line in rest:
            self._tell(learner, line)
        await asyncio.to_thread(_store, book, rest)

    def _tell(self, learner: int, line: logs.Line) -> None:
        self._tails[learner].append(line.line)
        self.lines[learner] = line.n
        self._log.info("[%s %d] %s", self._launch.role, learner, line.line)


def _store(book: LogBook, lines: Sequence[logs.Line]) -> None:
    book.append([{"n": line.n, "t": line.t, "line": line.line} for line in lines])
