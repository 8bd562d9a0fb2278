"""The last lines of a learner's log are known when its program has ended, however much it has printed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from folder_store import FolderStore
from unit.triggers.test_gang_drive import Log
from unit.triggers.trigger_helpers import JOB

from updraft.kubernetes.logend import END_LINES
from updraft.kubernetes.objects import Launch
from updraft.lifecycle.membership import Membership
from updraft.recovery.facts import ContainerFacts, PodFacts
from updraft.recovery.matching import decisive
from updraft.storage.logbook import read_log, read_log_end
from updraft.timing import TIMING
from updraft.triggers.followers import Followers

LAUNCH = Launch("updraft-default", "default", JOB, "train", 1, Membership.first(1))
FLOOD = 200_000
TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 5', "ValueError: batch 17"]
PRINTED = [*(f"line {n}" for n in range(1, FLOOD + 1)), *TRACEBACK]


def stamped(printed: list[str]) -> list[str]:
    return [f"2026-01-01T00:00:{n // 10_000:02d}.{n % 10_000:09d}Z {line}" for n, line in enumerate(printed)]


FLOODED = stamped(PRINTED)


def pod(state: str) -> PodFacts:
    main = ContainerFacts(state, exit_code=1 if state == "terminated" else None)
    return PodFacts("pod", "uid", 1, "Running", "", "", False, None, ContainerFacts("running"), main)


class Answer:
    status = 200

    def __init__(self, lines: list[str], hangs: asyncio.Event | None) -> None:
        self._lines, self._hangs = lines, hangs
        self.content = self

    async def iter_any(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self._lines), 1000):
            yield "".join(f"{line}\n" for line in self._lines[at : at + 1000]).encode()
        if self._hangs is not None:
            await self._hangs.wait()

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(self, *_: object) -> None: ...


class Cluster:
    """A log API. Who follows the log gets `read` lines, and more never: the reader is behind."""

    def __init__(self, printed: list[str], read: int, *, counts: bool = True) -> None:
        self.log = FLOODED if printed is PRINTED else stamped(printed)
        self.read, self.counts, self.followed = read, counts, 0

    async def call_api(self, path: str, method: str, *, query_params: list[tuple[str, str]], **_: Any) -> Answer:
        query = dict(query_params)
        if "tailLines" in query:
            return Answer(self.log[-int(query["tailLines"]) :], None)
        begin = query.get("sinceTime", "")[:19]
        since = [line for line in self.log if line >= begin] if begin else self.log
        if "follow" in query:
            self.followed += 1
            return Answer(since[: self.read], asyncio.Event() if self.read < len(self.log) else None)
        if not self.counts:
            raise ConnectionError
        return Answer(since, None)


def end_of(cluster: Cluster, store: FolderStore) -> Followers:
    """The followers of a program that ends while its log is read."""
    made = Followers(LAUNCH, lambda: store, Log(), timing=replace(TIMING, log_end_seconds=0.05), shared=None)

    async def run() -> None:
        watch: Any = SimpleNamespace(api=cluster)
        made.follow(watch, [pod("running")])
        while made.lines.get(1, 0) < min(cluster.read, len(cluster.log)):
            await asyncio.sleep(0)
        made.follow(watch, [pod("terminated")])
        await made.finish()

    asyncio.run(run())
    return made


def recorded(store: FolderStore, after: int = 0) -> list[str]:
    lines = read_log("default", JOB, "train", 1, 1, after=after, limit=10**6, store=store)
    assert [line["n"] for line in lines] == list(range(after + 1, after + 1 + len(lines)))
    return [line["line"] for line in lines]


def test_the_traceback_behind_200_000_lines_is_what_the_verdict_is_made_of(store: FolderStore) -> None:
    made = end_of(Cluster(PRINTED, read=3000), store)
    assert made.tails[1] == PRINTED[-END_LINES:]


def test_a_traceback_that_the_runtime_put_before_thousands_of_lines_is_found(store: FolderStore) -> None:
    """Standard error is read separately from standard output, of which a pipe holds 64 KiB."""
    floods = [f"line {n}" for n in range(FLOOD)]
    overtaken = [*floods[:-9000], TRACEBACK[0], floods[-9000], *TRACEBACK[1:], *floods[-8999:]]
    made = end_of(Cluster(overtaken, read=3000), store)
    assert made.tails[1] == [*floods[-END_LINES:], *TRACEBACK]
    assert decisive(made.tails[1]) == (TRACEBACK[0], TRACEBACK[2])


def test_a_failed_program_without_a_traceback_keeps_its_last_lines(store: FolderStore) -> None:
    floods = [f"line {n}" for n in range(20_000)]
    assert end_of(Cluster(floods, read=3000), store).tails[1] == floods[-END_LINES:]


def test_the_record_says_how_many_lines_it_lacks_and_ends_with_the_last(store: FolderStore) -> None:
    end_of(Cluster(PRINTED, read=3000), store)
    missing = len(PRINTED) - 3000 - END_LINES
    notice = f"... {missing:,} lines not kept: the program printed faster than its log is read ..."
    assert recorded(store) == [*PRINTED[:3000], notice, *PRINTED[-END_LINES:]]
    shown = read_log_end("default", JOB, "train", 1, 1, limit=3, store=store)
    assert [line["line"] for line in shown] == TRACEBACK


def test_a_gap_whose_size_the_cluster_does_not_tell_is_a_line_too(store: FolderStore) -> None:
    end_of(Cluster(PRINTED, read=3000, counts=False), store)
    notice = "... lines not kept: the program printed faster than its log is read ..."
    assert recorded(store, 3000) == [notice, *PRINTED[-END_LINES:]]


def test_a_reader_that_comes_to_the_last_lines_leaves_no_gap_and_repeats_none(store: FolderStore) -> None:
    printed = PRINTED[-1000:]
    assert end_of(Cluster(printed, read=1000), store).tails[1] == printed[-END_LINES:]
    assert recorded(store) == printed


@pytest.mark.parametrize("behind", [1, END_LINES - 1, END_LINES])
def test_a_reader_that_is_a_little_behind_gets_what_it_lacks(store: FolderStore, behind: int) -> None:
    printed = PRINTED[-1000:]
    end_of(Cluster(printed, read=1000 - behind), store)
    assert recorded(store) == printed


def test_a_log_that_was_never_read_is_recorded_from_its_end(store: FolderStore) -> None:
    end_of(Cluster(PRINTED, read=0), store)
    missing = len(PRINTED) - END_LINES
    notice = f"... {missing:,} lines not kept: the program printed faster than its log is read ..."
    assert recorded(store) == [notice, *PRINTED[-END_LINES:]]
