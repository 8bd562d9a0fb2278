"""What the tests of triggers share."""

from __future__ import annotations

from typing import Any

from updraft.services import Services, UsesServices

JOB = "digits-1"
START = 1_000.0


class Clock:
    """Fake time: every look at it is a little later."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        self.now += 0.1
        return self.now


def services_in_use() -> Services:
    """Those of the fixture `outside`."""
    return UsesServices().services


async def events(of: Any) -> list[dict[str, Any]]:
    return [event.payload async for event in of.run()]
