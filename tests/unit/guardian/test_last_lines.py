"""Reading what a learner says while it is removed: bounded in time and memory, whatever it writes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from updraft.guardian.lastwords import PART_BYTES, _lines
from updraft.kubernetes.flow import BURST_SECONDS, Flow
from updraft.kubernetes.logs import MAX_LINE_BYTES


class Response:
    """A log in parts; reading one takes a hundredth of a second."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self.parts, self.now, self.read = parts, 0.0, 0

    def stream(self, size: int, *, decode_content: bool) -> Iterator[bytes]:
        for part in self.parts:
            self.now += 0.01
            self.read += 1
            yield part

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def lines(self, deadline: float) -> list[bytes]:
        flow = Flow(1 << 20, 1000, clock=lambda: self.now)
        return list(_lines(self, flow, deadline, lambda: self.now, self.sleep))


def forever(part: bytes) -> Iterator[bytes]:
    while True:
        yield part


def test_all_lines_come_and_the_last_may_have_no_end() -> None:
    assert Response(iter([b"one\ntw", b"o\n", b"three"])).lines(10) == [b"one", b"two", b"three"]


def test_a_line_that_never_ends_is_cut_and_does_not_outlast_the_deadline() -> None:
    response = Response(forever(b"x" * PART_BYTES))
    assert response.lines(10) == [b"x" * MAX_LINE_BYTES]
    assert response.now == pytest.approx(10, abs=0.2)
    assert response.read * PART_BYTES <= (10 + BURST_SECONDS + 1) * (1 << 20)


def test_a_flood_of_lines_ends_with_the_deadline() -> None:
    response = Response(forever(b"x\n" * 500))
    lines = response.lines(10)
    assert set(lines) == {b"x"}
    assert len(lines) <= 1000 * (10 + BURST_SECONDS + 1)
