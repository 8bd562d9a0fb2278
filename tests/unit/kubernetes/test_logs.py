"""Each line of a learner's log once, in order, however often the stream is cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from updraft.kubernetes.logs import (
    CHUNK_CHARACTERS,
    MAX_LINE_CHARACTERS,
    PENDING_CHARACTERS,
    Cursor,
    Line,
    follow,
    record,
    split_line,
)
from updraft.kubernetes.token_bucket import BURST_SECONDS, TokenBucket


class FakeContent:
    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts

    async def iter_any(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part


class FakeResponse:
    status = 200

    def __init__(self, parts: list[bytes]) -> None:
        self.content = FakeContent(parts)

    async def __aenter__(self) -> FakeResponse:
        return self

    async def __aexit__(self, *_: object) -> None: ...


class FakeApi:
    """A cluster whose log API knows whole seconds only and may cut the answer short."""

    def __init__(self, log: list[tuple[str, str]], cuts: list[int]) -> None:
        self.log, self.cuts = log, cuts

    async def call_api(
        self, path: str, method: str, *, query_params: list[tuple[str, str]], **_: object
    ) -> FakeResponse:
        since = dict(query_params).get("sinceTime", "")[:19]
        raw = "".join(f"{t} {text}\n" for t, text in self.log if t[:19] >= since).encode()
        if self.cuts:
            raw = raw[: self.cuts.pop()]
            raw = raw[: raw.rfind(b"\n") + 1]
        return FakeResponse([raw[i : i + 7] for i in range(0, len(raw), 7)])


def stamp(nanoseconds: int) -> str:
    return f"2026-01-01T00:00:{nanoseconds // 10**9:02d}.{nanoseconds % 10**9:09d}Z"


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 5 * 10**9), max_size=20),
    st.lists(st.integers(0, 400), max_size=4),
)
def test_every_line_is_recorded_once_and_in_order_whatever_is_cut(times: list[int], cuts: list[int]) -> None:
    log = [(stamp(t), f"line {n}") for n, t in enumerate(sorted(times))]
    api = FakeApi(log, list(cuts))

    async def read() -> list[Line]:
        cursor, lines = Cursor(), []
        for _ in range(len(cuts) + 1):
            async for line in follow(api, "ns", "pod", "base", cursor):
                lines.append(line)
        return lines

    lines = asyncio.run(read())
    assert [line.line for line in lines] == [text for _, text in log]
    assert [line.n for line in lines] == list(range(1, len(log) + 1))


def test_trailing_zeros_that_the_cluster_trims_do_not_disturb_the_order() -> None:
    assert split_line("2026-01-01T00:00:00.1Z text") == ("2026-01-01T00:00:00.100000000Z", "text")
    assert split_line("2026-01-01T00:00:00Z text") == ("2026-01-01T00:00:00.000000000Z", "text")
    assert split_line("no time here") == ("", "no time here")


def test_a_chunk_that_the_store_refuses_is_written_later() -> None:
    written: list[Line] = []
    calls = 0

    async def write(chunk: list[Line]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ConnectionError("store is away")
        written.extend(chunk)

    async def lines(cursor: Cursor) -> AsyncIterator[Line]:
        if cursor.n == 0:
            yield Line(cursor.advance(stamp(1)), stamp(1), "hello")

    async def run() -> None:
        finished = asyncio.Event()
        finished.set()
        await record(lines, Cursor(), write, finished=finished)

    asyncio.run(run())
    assert [line.line for line in written] == ["hello"]


@pytest.mark.parametrize(("asked", "paused"), [("7", 7.0), ("60", 10.0)])
def test_a_cluster_that_refuses_a_log_is_asked_again_when_it_says(asked: str, paused: float) -> None:
    """But for the end of a log nobody waits for long."""
    pauses: list[float] = []

    class Refusing(FakeResponse):
        status = 429
        headers: ClassVar = {"Retry-After": asked}

    class Api:
        async def call_api(self, *_: object, **__: object) -> FakeResponse:
            return FakeResponse([f"{stamp(1)} hello\n".encode()]) if pauses else Refusing([])

    async def run() -> list[Line]:
        finished, written = asyncio.Event(), []
        finished.set()

        async def write(chunk: list[Line]) -> None:
            written.extend(chunk)

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)

        def lines(cursor: Cursor) -> AsyncIterator[Line]:
            return follow(Api(), "ns", "pod", "base", cursor)

        await record(lines, Cursor(), write, finished=finished, sleep=sleep)
        return written

    assert [line.line for line in asyncio.run(run())] == ["hello"]
    assert pauses == [paused]


def test_the_last_look_at_a_log_follows_the_end_of_its_program_at_once() -> None:
    looks = 0

    async def lines(cursor: Cursor) -> AsyncIterator[Line]:
        nonlocal looks
        looks += 1
        if looks == 1:  # the stream has ended, and nobody has said yet that the program has
            asyncio.get_running_loop().call_soon(finished.set)
        elif finished.is_set():
            yield Line(cursor.advance(stamp(1)), stamp(1), "bye")

    async def sleep(seconds: float) -> None:
        raise AssertionError(f"it paused for {seconds} s")

    async def write(chunk: list[Line]) -> None:
        written.extend(chunk)

    async def run() -> None:
        nonlocal finished
        finished = asyncio.Event()
        await record(lines, Cursor(), write, finished=finished, sleep=sleep)

    finished, written = asyncio.Event(), list[Line]()
    asyncio.run(run())
    assert ([line.line for line in written], looks) == (["bye"], 2)


def test_a_line_without_an_end_is_cut_and_not_kept_in_memory() -> None:
    class Endless(FakeResponse):
        def __init__(self) -> None:
            self.content = FakeContent(
                [f"{stamp(1)} ".encode(), *[b"x" * 65_536] * 200, b"\n", f"{stamp(2)} end".encode()]
            )

    class Api:
        async def call_api(self, *_: object, **__: object) -> FakeResponse:
            return Endless()

    async def read() -> list[Line]:
        return [line async for line in follow(Api(), "ns", "pod", "base", Cursor(), TokenBucket(1 << 30))]

    assert asyncio.run(read()) == [Line(1, stamp(1), "x" * MAX_LINE_CHARACTERS), Line(2, stamp(2), "end")]


def read_at_most(parts: list[bytes], flow: TokenBucket) -> list[Line]:
    class Api:
        async def call_api(self, *_: object, **__: object) -> FakeResponse:
            return FakeResponse(parts)

    async def read() -> list[Line]:
        return [line async for line in follow(Api(), "ns", "pod", "base", Cursor(), flow)]

    return asyncio.run(read())


class Time:
    """Passes while somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.sleeps = 0.0, 0

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps += seconds > 0


def test_a_flood_of_lines_is_read_at_its_rate_and_none_is_lost() -> None:
    time = Time()
    flow = TokenBucket(1 << 30, 1000, clock=time.clock, sleep=time.sleep)
    text = b"".join(f"{stamp(n)} line\n".encode() for n in range(10_000))
    lines = read_at_most([text], flow)
    assert [line.n for line in lines] == list(range(1, 10_001))
    assert time.now == pytest.approx(10_000 / 1000 - BURST_SECONDS, abs=0.5)
    assert time.sleeps > 20  # others have their turn in between


def test_a_flood_without_a_line_end_is_read_at_its_rate() -> None:
    time = Time()
    flow = TokenBucket(1 << 20, 1000, clock=time.clock, sleep=time.sleep)
    (line,) = read_at_most([f"{stamp(1)} ".encode(), *[b"x" * 65_536] * 160], flow)
    assert line.line == "x" * MAX_LINE_CHARACTERS
    assert time.now == pytest.approx(10 - BURST_SECONDS, abs=0.2)


def test_an_ordinary_log_never_waits_and_a_pause_gives_its_room_back() -> None:
    time = Time()
    flow = TokenBucket(1000, 100, clock=time.clock, sleep=time.sleep)
    assert flow.owed_seconds(2000, 200) == 0
    time.now = 1.0
    assert flow.owed_seconds(500, 50) == 0
    assert flow.owed_seconds(1500, 50) == pytest.approx(1.0)
    time.now = 100.0
    assert flow.owed_seconds(2000, 0) == 0
    assert flow.owed_seconds(1000, 0) == pytest.approx(1.0)


def test_many_floods_share_what_one_process_reads() -> None:
    time = Time()
    shared = TokenBucket(1 << 30, 1000, clock=time.clock, sleep=time.sleep)
    flows = [TokenBucket(1 << 30, 500, shared=shared, clock=time.clock, sleep=time.sleep) for _ in range(8)]
    text = b"".join(f"{stamp(n)} line\n".encode() for n in range(1000))
    for flow in flows:
        assert len(read_at_most([text], flow)) == 1000
    assert time.now >= 8 * 1000 / 1000 - BURST_SECONDS


def test_a_burst_waits_for_the_store_and_comes_in_chunks_of_bounded_size() -> None:
    total, ahead, stored = 3_000, [0], [0]
    sizes: list[int] = []

    async def write(chunk: list[Line]) -> None:
        sizes.append(sum(len(line.line) for line in chunk))
        stored[0] += len(chunk)

    async def lines(cursor: Cursor) -> AsyncIterator[Line]:
        while cursor.n < total:
            yield Line(cursor.advance(stamp(cursor.n)), stamp(cursor.n), "x" * MAX_LINE_CHARACTERS)
            ahead[0] = max(ahead[0], cursor.n - stored[0])

    async def run() -> None:
        finished = asyncio.Event()
        finished.set()
        await record(lines, Cursor(), write, finished=finished)

    asyncio.run(run())
    assert stored == [total]
    assert max(sizes) <= CHUNK_CHARACTERS
    assert ahead[0] * MAX_LINE_CHARACTERS <= PENDING_CHARACTERS + MAX_LINE_CHARACTERS


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"flush_seconds": 0.001}, ["first", "second"]),
        ({"flush_seconds": 3600, "pending_characters": 1}, ["first"]),
    ],
)
def test_a_follower_that_is_stopped_lets_its_write_end_before_the_next(
    limits: dict[str, Any], expected: list[str]
) -> None:
    began: list[list[str]] = []
    stored: list[list[str]] = []
    inside, most = 0, 0

    async def run() -> None:
        release, writing, more = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def thread(chunk: list[str]) -> None:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            began.append(chunk)
            writing.set()
            await release.wait()
            stored.append(chunk)
            inside -= 1

        async def write(chunk: list[Line]) -> None:
            # As with a thread: who waits for it can be cancelled, the write itself cannot.
            await asyncio.shield(asyncio.create_task(thread([line.line for line in chunk])))

        async def lines(cursor: Cursor) -> AsyncIterator[Line]:
            yield Line(cursor.advance(stamp(1)), stamp(1), "first")
            await more.wait()
            yield Line(cursor.advance(stamp(2)), stamp(2), "second")
            await asyncio.Event().wait()

        following = asyncio.create_task(record(lines, Cursor(), write, finished=asyncio.Event(), **limits))
        await writing.wait()
        more.set()
        for _ in range(20):
            await asyncio.sleep(0)
        following.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert began == [began[0]]
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await following

    asyncio.run(asyncio.wait_for(run(), 20))
    assert most == 1
    assert stored == began
    assert [line for chunk in stored for line in chunk] == expected
