"""Small helpers of the conformance tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def eventually(ask: Callable[[], Any], *, within_seconds: float = 60.0) -> Any:
    """The first truthy answer."""
    deadline = time.monotonic() + within_seconds
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"still {answer!r} after {within_seconds} s"
        time.sleep(0.05)
