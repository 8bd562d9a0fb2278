"""Reading what a learner says while it is removed: bounded in time and memory, whatever it writes."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from folder_store import FolderStore

from updraft.controller.final_logs import CLOSE_SECONDS, PART_BYTES, FinalLogCollector, _lines
from updraft.kubernetes.logend import END_LINES
from updraft.kubernetes.logs import MAX_LINE_BYTES, MAX_LINE_CHARACTERS, Cursor, Line, LogReader
from updraft.kubernetes.objects import Launch
from updraft.kubernetes.token_bucket import BURST_SECONDS, TokenBucket
from updraft.lifecycle.membership import Membership
from updraft.recovery.facts import ContainerFacts, PodFacts
from updraft.storage.logbook import read_log


class Measuring(LogReader):
    longest = 0  # bytes of what it was given

    def take(self, raw: bytes) -> Line | None:
        self.longest = max(self.longest, len(raw))
        return super().take(raw)


class Response:
    """A log in parts; reading one takes a hundredth of a second."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self.parts, self.now, self.read, self.longest = parts, 0.0, 0, 0

    def stream(self, size: int, *, decode_content: bool) -> Iterator[bytes]:
        for part in self.parts:
            self.now += 0.01
            self.read += 1
            yield part

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def lines(self, deadline: float, recorded: Cursor | None = None) -> list[str]:
        flow, reader = TokenBucket(1 << 20, 1000, clock=lambda: self.now), Measuring(recorded or Cursor())
        lines = [line.line for line in _lines(self, reader, flow, deadline, lambda: self.now, self.sleep)]
        self.longest = reader.longest
        return lines


def forever(part: bytes) -> Iterator[bytes]:
    while True:
        yield part


def test_all_lines_come_and_the_last_may_have_no_end() -> None:
    assert Response(iter([b"one\ntw", b"o\n", b"three"])).lines(10) == ["one", "two", "three"]


def test_a_line_that_never_ends_is_cut_and_does_not_outlast_the_deadline() -> None:
    response = Response(forever(b"x" * PART_BYTES))
    assert response.lines(10) == ["x" * MAX_LINE_CHARACTERS]
    assert response.longest == MAX_LINE_BYTES
    assert response.now == pytest.approx(10, abs=0.2)
    assert response.read * PART_BYTES <= (10 + BURST_SECONDS + 1) * (1 << 20)


def test_a_flood_of_lines_ends_with_the_deadline() -> None:
    response = Response(forever(b"x\n" * 500))
    lines = response.lines(10)
    assert set(lines) == {"x"}
    assert len(lines) <= 1000 * (10 + BURST_SECONDS + 1)


def test_what_is_recorded_keeps_no_last_words_waiting() -> None:
    """A program has printed 20,000 short lines: they are recorded, and would take 20 s as new ones."""
    last = "2026-01-02T03:04:05.000000001Z"
    response = Response(iter([f"{last} x\n".encode() * 1000] * 20 + [b"2026-01-02T03:04:06Z bye\n"]))
    assert response.lines(10, Cursor(20_000, last, 20_000)) == ["bye"]
    assert response.now < 1


class Cluster:
    """The log API before a flood; each answer begins where its question says."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def read_namespaced_pod_log(self, *_: object, **options: Any) -> Any:
        data = "".join(f"{line}\n" for line in self.log[-options.get("tail_lines", len(self.log)) :]).encode()
        parts = [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]
        return SimpleNamespace(data=data, stream=lambda *_, **__: iter(parts), close=lambda: None)


def test_a_log_that_is_too_long_for_the_time_is_kept_with_its_end_and_a_line_about_the_rest(
    store: FolderStore,
) -> None:
    log = [f"2026-01-01T00:00:{n // 10_000:02d}.{n % 10_000:09d}Z line {n}" for n in range(100_000)]
    launch = Launch("updraft-default", "default", "digits-1", "train", 1, Membership.first(1))
    running = ContainerFacts("running")
    pod = PodFacts("pod", "uid", 1, "Running", "", "", True, None, running, running)
    core: Any = Cluster(log)
    FinalLogCollector(core, lambda: store, launch, [pod], limit_seconds=CLOSE_SECONDS).wait()  # no time but for the end
    kept = [line["line"] for line in read_log("default", "digits-1", "train", 1, 1, limit=10**6, store=store)]
    missing = len(log) - 1 - END_LINES
    notice = f"... {missing:,} lines not kept: the program printed faster than its log is read ..."
    assert kept == ["line 0", notice, *(f"line {n}" for n in range(len(log) - END_LINES, len(log)))]
