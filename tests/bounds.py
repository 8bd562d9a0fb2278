"""What a piece of work may cost: CPU seconds and memory of this process, measured on Linux."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS = 2.0
MEGABYTES = 100
# The same work was measured to take 1.9 times the CPU time while neighbours used the machine's cores and caches.
BUSY = 2.0
GUARD_BYTES = 3 * 1024**3  # what the kernel allows beyond the present size, so that a regression ends the test alone


@contextmanager
def bounded(seconds: float = SECONDS, megabytes: float = MEGABYTES) -> Iterator[None]:
    """Fail when the block takes more than BUSY times the CPU time of this process, or more memory at its peak. CPU
    time, because machines that run tests are busy; a block that waits for ever meets the test's own timeout."""
    before = _status("VmRSS")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + GUARD_BYTES, limits[1]))
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    started = time.process_time()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    took_seconds = time.process_time() - started
    peak_megabytes = (_status("VmHWM") - before) / 1e6
    most_seconds = BUSY * seconds
    assert took_seconds < most_seconds, f"took {took_seconds:.1f} s of CPU; at most {most_seconds:g} s are allowed"
    assert peak_megabytes < megabytes, f"took {peak_megabytes:.0f} MB; at most {megabytes:g} MB are allowed"


def _status(name: str) -> int:
    """Bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)
