"""Small helpers of the conformance tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil


def eventually(ask: Callable[[], Any], *, within_seconds: float = 60.0) -> Any:
    """The first truthy answer."""
    deadline = time.monotonic() + within_seconds
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"still {answer!r} after {within_seconds} s"
        time.sleep(0.05)


def programs(state_dir: Path) -> list[psutil.Process]:
    """Processes whose current folder lies in a local node's state folder, as that of each container's program does."""
    return [p for p in psutil.process_iter() if str(state_dir) in asked(p, psutil.Process.cwd)]


def asked(process: psutil.Process, question: Callable[[psutil.Process], Any]) -> Any:
    """The answer, or nothing when the process has ended."""
    try:
        return question(process)
    except psutil.Error:
        return ""
