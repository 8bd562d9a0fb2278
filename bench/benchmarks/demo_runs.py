"""One `make demo` in a home of the benchmarks' own: seconds of its stages. Called by the figures of the demo."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.stack import STACK, BenchmarkError, environment
from updraft.client import Client, load_config
from updraft.stack.layout import Home

DEMO_SECONDS = 3000
FIRST_STEP = "First metrics of the training"
TOTAL = "Total"
STATES = {"QUEUED": "Job queued", "PROCESSING": "Program runs", "STORING": "Program has ended", "COMPLETED": "Verdict"}


@dataclass(frozen=True)
class DemoRun:
    """`stages`: seconds that each took; `moments`: seconds from the demo's start."""

    stages: Mapping[str, float]
    moments: Mapping[str, float]


def run_demo(home: Home, extra: Mapping[str, str] | None = None) -> DemoRun:
    began = time.time()
    log = home.root / "demo.log"
    with log.open("w") as output:
        done = subprocess.run(
            [*STACK, "demo"],
            env={**environment(home), **(extra or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=DEMO_SECONDS,
            check=False,
        )
    ended = time.time()
    if done.returncode != 0:
        raise BenchmarkError(f"the demo ended with {done.returncode}:\n{log.read_text()[-3000:]}")
    record: dict[str, Any] = json.loads(home.timings_file.read_text())[-1]
    states = record["job"]["seconds_from_start"]
    moments = {text: states[state] for state, text in STATES.items() if state in states}
    moments[FIRST_STEP] = first_metrics(home, record["job"]["id"]) - began
    return DemoRun(record["seconds"], {**dict(sorted(moments.items(), key=lambda m: m[1])), TOTAL: ended - began})


def first_metrics(home: Home, job_id: str) -> float:
    """Return the Unix time at which the training logged first: the end of its first epoch."""
    with Client(load_config({"UPDRAFT_HOME": str(home.root)})) as client:
        history = client.metrics(job_id, "loss").history["loss"]
    return min(point.t for point in history)
