"""Follows the logs of one launch's learners into the store, each line once, and remembers their last lines."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from updraft.exceptions import UpdraftError
from updraft.kubernetes import logs
from updraft.kubernetes.flow import ALL_BYTES_PER_SECOND, ALL_LINES_PER_SECOND, Flow
from updraft.kubernetes.objects import Launch
from updraft.kubernetes.watch import PodWatch
from updraft.recovery.facts import PodFacts
from updraft_learner import contract

LOG_END_SECONDS = 20.0
LOG_STOP_SECONDS = 8.0
LOG_RETRY_SECONDS = 3.0
TAIL_LINES = 100
ALL = Flow(ALL_BYTES_PER_SECOND, ALL_LINES_PER_SECOND)  # of this process


class Followers:
    """One task per learner whose log is read. Lives in the triggerer's event loop."""

    def __init__(self, launch: Launch, log: Any) -> None:
        self._launch, self._log = launch, log
        self._tails: dict[int, deque[str]] = {}
        self._followers: dict[int, tuple[asyncio.Task[None], asyncio.Event]] = {}
        self.lines: dict[int, int] = {}  # read so far, per learner

    @property
    def tails(self) -> dict[int, list[str]]:
        return {learner: list(lines) for learner, lines in self._tails.items()}

    def follow(self, watch: PodWatch, pods: Sequence[PodFacts]) -> None:
        """Begin with every learner whose program (or failed staging) has a log by now."""
        for pod in pods:
            if pod.stage.state == "terminated" and pod.stage.exit_code:
                container, ended = contract.STAGE_CONTAINER, True
            elif pod.main.state in ("running", "terminated"):
                container, ended = contract.MAIN_CONTAINER, pod.main.state == "terminated"
            else:
                continue
            if pod.learner not in self._followers:
                finished = asyncio.Event()
                task = asyncio.create_task(self._follow(watch, pod.name, container, pod.learner, finished))
                self._followers[pod.learner] = (task, finished)
            if ended:
                self._followers[pod.learner][1].set()

    async def finish(self) -> None:
        """Give the followers of ended containers a bounded time to read the ends of the logs and to store them.

        Those of containers that still run would not end by themselves: what they have is stored by stopping them.
        """
        ended = [task for task, finished in self._followers.values() if finished.is_set()]
        if ended:
            await asyncio.wait(ended, timeout=LOG_END_SECONDS)
        await self.stop()

    async def stop(self) -> None:
        tasks = [task for task, _ in self._followers.values()]
        self._followers.clear()
        for task in tasks:
            task.cancel()  # on its way out a follower stores the lines that it has
        if tasks:
            done, _ = await asyncio.wait(tasks, timeout=LOG_STOP_SECONDS)
            for task in done:
                if not task.cancelled() and (error := task.exception()) is not None:
                    self._log.warning("A learner's log could not be kept: %s", error)

    async def _follow(self, watch: PodWatch, pod: str, container: str, learner: int, finished: asyncio.Event) -> None:
        from updraft.storage import objects

        launch = self._launch
        tail = self._tails.setdefault(learner, deque(maxlen=TAIL_LINES))
        while True:
            try:
                book = await asyncio.to_thread(
                    objects.LogBook.open, launch.tenant, launch.job_id, launch.role, launch.attempt, learner
                )
                break
            except UpdraftError as exc:  # where an earlier trigger stopped has to be known
                self._log.warning("The log of learner %d is not read yet: %s", learner, exc)
                await asyncio.sleep(LOG_RETRY_SECONDS)
        last = book.last
        cursor = logs.Cursor(n=last.n, t=last.t, same=last.same)
        tail.extend(book.tail)
        flow = Flow(shared=ALL)

        async def write(chunk: list[logs.Line]) -> None:
            await asyncio.to_thread(book.append, [{"n": line.n, "t": line.t, "line": line.line} for line in chunk])

        async def lines(at: logs.Cursor) -> AsyncIterator[logs.Line]:
            async for line in logs.follow(watch.api, launch.namespace, pod, container, at, flow):
                tail.append(line.line)
                self.lines[learner] = line.n
                self._log.info("[%s %d] %s", launch.role, learner, line.line)
                yield line

        await logs.record(lines, cursor, write, finished=finished)
