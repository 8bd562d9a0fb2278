"""What a piece of work may cost: CPU seconds and memory of this process, measured on Linux."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS = 2.0
PROBE_SECONDS = 0.027  # CPU time of the probe where these bounds were set: one of two cores of an AMD EPYC, undisturbed
PROBE = json.dumps([{"path": f"data/{number}", "size": number, "sha256": "0" * 64} for number in range(20_000)])
MEGABYTES = 100
GUARD_BYTES = 3 * 1024**3  # what the kernel allows beyond the present size, so that a regression ends the test alone


@contextmanager
def bounded(seconds: float = SECONDS, megabytes: float = MEGABYTES) -> Iterator[None]:
    """Fail when the block takes more CPU time of this process or more memory at its peak.

    CPU time, because machines that run tests are busy; a block that waits for ever meets the test's own timeout. A
    second of CPU is worth half as much while others use the same core's caches and units, so the bound grows with the
    time that a fixed piece of work takes before and after the block.
    """
    slowness = _slowness()
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
    seconds *= max(1.0, slowness, _slowness())
    peak_megabytes = (_status("VmHWM") - before) / 1e6
    assert took_seconds < seconds, f"took {took_seconds:.1f} s of CPU; at most {seconds:g} s are allowed"
    assert peak_megabytes < megabytes, f"took {peak_megabytes:.0f} MB; at most {megabytes:g} MB are allowed"


def _slowness() -> float:
    """How much longer the probe takes than where the bounds were set; the quickest of three."""

    def probe() -> float:
        started = time.process_time()
        json.loads(PROBE)
        sum(number * number for number in range(200_000))
        return time.process_time() - started

    return min(probe() for _ in range(3)) / PROBE_SECONDS


def _status(name: str) -> int:
    """Bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)
