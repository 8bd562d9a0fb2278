"""Facts about the machine and the checkout, and how noisy it is right now. Called by `cli`."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.results import Machine

REPOSITORY = Path(__file__).parents[2]
MIB = 1024**2
CALIBRATION_ROUNDS = 60
CALIBRATION_STEPS = 200_000


def machine() -> Machine:
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        processor=_processor(),
        cores=len(cores()),
        memory_mib=psutil.virtual_memory().total // MIB,
    )


def cores() -> list[int]:
    """Return the cores that this process may use."""
    with suppress(AttributeError):  # macOS
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def commit() -> tuple[str, bool]:
    """Return the commit of the checkout, and whether the code differs from it."""
    head = _git("rev-parse", "--short=12", "HEAD")
    # Results and the page made of them change with every run.
    ignored = [":!bench/results", ":!docs"]
    return head or "unknown", bool(_git("status", "--porcelain", "--untracked-files=no", "--", ".", *ignored))


def jitter() -> float:
    """Return (90th - 10th percentile) / median of the time that a fixed piece of work takes."""
    seconds = []
    for _ in range(CALIBRATION_ROUNDS):
        began = time.perf_counter()
        total = 0
        for number in range(CALIBRATION_STEPS):
            total += number
        seconds.append(time.perf_counter() - began)
    tenths = statistics.quantiles(seconds, n=10)
    return (tenths[-1] - tenths[0]) / statistics.median(seconds)


def others(seconds: float = 3.0) -> float:
    """Return the number of cores in use while this process sleeps."""
    return psutil.cpu_percent(interval=seconds) / 100 * (psutil.cpu_count() or 1)


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=30, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()
