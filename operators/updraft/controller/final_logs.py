"""Read the learners' logs to their end while the learners are removed, when no trigger reads them any more.

When a user ends a task, its trigger is cancelled at once; the learners print until they are stopped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from updraft.exceptions import UpdraftError
from updraft.kubernetes import calls, logend
from updraft.kubernetes.logs import CHUNK_CHARACTERS, CHUNK_LINES, MAX_LINE_BYTES, Cursor, Line, LogReader
from updraft.kubernetes.token_bucket import TokenBucket
from updraft.recovery.facts import PodFacts
from updraft_learner.contract import MAIN_CONTAINER

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api
    from urllib3 import BaseHTTPResponse

    from updraft.kubernetes.objects import Launch
    from updraft_learner.store import ObjectStore

log = logging.getLogger(__name__)

PART_BYTES = 1 << 16
CLOSE_SECONDS = 8.0  # part of the limit that is kept for the last lines of a log too long to read


class FinalLogCollector:
    """Follow the programs' logs of one attempt from where the record ends, in threads, until `wait` returns."""

    def __init__(
        self,
        core: CoreV1Api,
        open_store: Callable[[], ObjectStore],
        launch: Launch,
        pods: Sequence[PodFacts],
        *,
        limit_seconds: float,
    ) -> None:
        self._open_store = open_store
        self._core, self._launch = core, launch
        self._deadline = time.monotonic() + limit_seconds  # for all logs together
        self._read_until = self._deadline - CLOSE_SECONDS
        said = [pod for pod in pods if pod.main.state in ("running", "terminated")]
        self._heard = {pod.name: threading.Event() for pod in said}
        self._threads = [threading.Thread(target=self._read, args=(pod,), daemon=True) for pod in said]
        for thread in self._threads:
            thread.start()

    def wait_begun(self) -> None:
        """Wait until every log is being read, and is read to its end if the program has ended: then its pod is deleted
        at once."""
        for heard in self._heard.values():
            heard.wait(max(0.0, self._deadline - time.monotonic()))

    def wait(self) -> None:
        """Wait until every log has ended, or the time limit is reached."""
        for thread in self._threads:
            thread.join(max(0.0, self._deadline - time.monotonic()))

    def _read(self, pod: PodFacts) -> None:
        try:
            self._follow(pod)
        except UpdraftError as exc:
            log.warning("The end of learner %d's log is not kept: %s", pod.learner, exc)
        except Exception as exc:  # noqa: BLE001 - outermost line of the thread: the pod may be deleted while it is read
            log.warning("The end of learner %d's log is not kept: %s", pod.learner, type(exc).__name__)
        finally:
            self._heard[pod.name].set()

    def _follow(self, pod: PodFacts) -> None:
        from updraft.storage import objects

        launch = self._launch
        book = objects.LogBook.open(
            launch.tenant, launch.job_id, launch.role, launch.attempt, pod.learner, store=self._open_store()
        )
        cursor = Cursor(n=book.last.n, t=book.last.t, same=book.last.same)
        response = self._open(pod, follow=True)
        if pod.main.state == "running":
            self._heard[pod.name].set()
        lines: list[Line] = []
        characters = 0
        try:
            for line in _lines(response, LogReader(cursor), TokenBucket(), self._read_until):
                lines.append(line)
                characters += len(line.line)
                if len(lines) >= CHUNK_LINES or characters >= CHUNK_CHARACTERS:
                    _store(book, lines)
                    characters = 0
        finally:
            response.close()  # unread data would precede the next answer on this connection
            _store(book, lines)
        if time.monotonic() >= self._read_until:
            self._close(pod, book, cursor)

    def _close(self, pod: PodFacts, book: Any, cursor: Cursor) -> None:
        """Record the last lines of a log that could not be read to its end in time."""
        response = self._open(pod, tail_lines=logend.END_LINES, limit_bytes=logend.END_BYTES)
        end = logend.raw_lines(response.data)
        if logend.lines_after(replace(cursor), end, None):
            _store(book, logend.lines_after(cursor, end, self._count(pod, cursor, end)))

    def _count(self, pod: PodFacts, cursor: Cursor, end: Sequence[bytes]) -> int | None:
        counter, until = logend.Counter(cursor, end), time.monotonic() + logend.COUNT_SECONDS
        response = self._open(pod)
        try:
            for part in response.stream(PART_BYTES, decode_content=False):
                if counter.read(part) or time.monotonic() >= until:
                    break
        finally:
            response.close()
        return counter.counted

    def _open(self, pod: PodFacts, **options: Any) -> BaseHTTPResponse:
        response: BaseHTTPResponse | None = calls.call(
            f"read the log of {pod.name}",
            self._core.read_namespaced_pod_log,
            pod.name,
            self._launch.namespace,
            container=MAIN_CONTAINER,
            timestamps=True,
            _preload_content=False,
            **options,
        )
        assert response is not None  # `call` returns None only for accepted errors, and none are accepted
        return response


def _lines(
    response: Any,
    reader: LogReader,
    flow: TokenBucket,
    deadline: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Line]:
    """Yield the lines that are not recorded yet, until the log ends or the time is over; also a last line without a
    newline.

    The rate is that of `flow`. Recorded lines come first and count as bytes only: if they counted as lines too, a whole
    file of short lines would take a minute, and the last lines would come after it.
    """
    rest = b""
    for part in response.stream(PART_BYTES, decode_content=False):
        *whole, rest = (rest + part).split(b"\n")
        rest = rest[:MAX_LINE_BYTES]
        new = 0
        for raw in whole:
            if (line := reader.take(raw)) is not None:
                new += 1
                yield line
            if clock() > deadline:
                return
        sleep(max(0.0, min(flow.owed_seconds(len(part), new), deadline - clock())))
        if clock() >= deadline:
            break
    if rest and (line := reader.take(rest)) is not None:
        yield line


def _store(book: Any, lines: list[Line]) -> None:
    if lines:
        book.append([{"n": line.n, "t": line.t, "line": line.line} for line in lines])
        lines.clear()
