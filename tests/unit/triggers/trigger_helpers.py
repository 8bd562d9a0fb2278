"""What the tests of triggers share."""

from __future__ import annotations

from typing import Any

JOB = "digits-1"
START = 1_000.0


class Clock:
    """Fake time: every look at it is half a second later."""

    def __init__(self) -> None:
        self.now = START

    def time(self) -> float:
        self.now += 0.5
        return self.now


async def events(of: Any) -> list[dict[str, Any]]:
    return [event.payload async for event in of.run()]
