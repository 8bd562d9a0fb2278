"""From a killed learner to its next new step: on the platform, and with a shell loop that starts the program again.

Both sides run the same program from a checkpoint of its own and are killed with SIGKILL while the platform is up, in
turn. What counts is the time from the signal to the first step that had not been made before, as the program itself
notes it: steps that are repeated are lost time too.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machine import REPOSITORY
from benchmarks.options import Options
from benchmarks.results import Budget, Comparison, Measured, TableOf, Value, spread
from benchmarks.stack import BenchmarkError, Stack, learner_python, running_stack
from updraft.exceptions import NotFoundError

NAME, TITLE = "recovery", "From a killed learner to its next new step"
BUDGET = Budget(at="most", value=1.2)
CODE = REPOSITORY / "bench" / "jobs" / "recovery"
CHECKPOINT_SECONDS = 8
TEXTS = {"long": 8, "short": 1}  # that the program encodes before its first step, by how long it takes to start
STEPS_BEFORE = 12  # after the newest checkpoint, by when it is stored too; the same on both sides
PATIENCE_SECONDS = 240.0
LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Restart:
    """Unix seconds of a kill and of what followed it; `started`: the successor's program."""

    killed: float
    started: float
    stepped: float
    renewed: float  # the first step that had not been made before
    repeated: int

    @property
    def seconds(self) -> float:
        return self.renewed - self.killed

    @property
    def own_seconds(self) -> float:
        """Return what the program itself needed."""
        return self.stepped - self.started


PARTS: Mapping[str, Callable[[Restart], float]] = {
    "killed → successor's process": lambda restart: restart.started - restart.killed,
    "successor's process → its first step": lambda restart: restart.own_seconds,
    "its first step → its first new step": lambda restart: restart.renewed - restart.stepped,
}


def measure(options: Options) -> Measured:
    rounds = {"long": options.pairs(4, 1), "short": options.pairs(4, 1)}
    both: dict[str, list[tuple[Restart, Restart]]] = {start: [] for start in TEXTS}
    with tempfile.TemporaryDirectory(prefix="updraft-bench-", dir=REPOSITORY / ".updraft") as folder:
        with running_stack() as stack:
            for start, texts in TEXTS.items():
                for number in range(rounds[start]):
                    notes = Path(folder) / f"managed-{start}-{number}.jsonl"
                    managed = on_platform(stack, notes, texts)
                    both[start].append((managed, alone(Path(folder) / f"bare-{start}-{number}", texts)))
    return measured(both)


def measured(both: Mapping[str, Sequence[tuple[Restart, Restart]]]) -> Measured:
    """Compute the figure. `both`: pairs of a restart on the platform and a bare one, by the program's start."""
    doubts = [
        f"the bare restarts of the program with a {start} start differ by {among:.0%} among themselves"
        for start, pairs in both.items()
        if len(pairs) > 1 and (among := spread([bare.seconds for _, bare in pairs])) > BUDGET.value - 1
    ]
    every = [pair for pairs in both.values() for pair in pairs]
    rows = tuple(
        (f"{what}, {start} start", *(statistics.median(get(pair[side]) for pair in pairs) for side in (0, 1)))
        for start, pairs in both.items()
        for what, get in PARTS.items()
    )
    return Measured(
        settings={**{f"texts_{start}": TEXTS[start] for start in both}, "checkpoint_seconds": CHECKPOINT_SECONDS},
        comparisons=tuple(
            Comparison(
                name=f"Learner killed to next new step, {start} start",
                unit="s",
                a="on the platform",
                b="bare restart",
                pairs=tuple((managed.seconds, bare.seconds) for managed, bare in pairs),
                budget=BUDGET,
            )
            for start, pairs in both.items()
        ),
        values=(
            Value(name="What the platform adds", unit="s", samples=tuple(m.seconds - b.seconds for m, b in every)),
            Value(name="Steps repeated on the platform", unit="", samples=tuple(m.repeated for m, _ in every)),
            Value(name="Steps repeated bare", unit="", samples=tuple(b.repeated for _, b in every)),
        ),
        tables=(TableOf(title="Seconds, medians", columns=("part", "on the platform", "bare"), rows=rows),),
        notes=(
            "The program is `bench/jobs/recovery/train.py`: PyTorch on one thread, texts that it encodes at its start, "
            "a model and an optimizer of 87 MB to restore. With a long start it needs a fraction of a minute to its "
            "first step, as programs with large models and data do; with a short one, some seconds.",
            "What the platform adds does not depend on the program, so it weighs more on one with a short start.",
            "Bare, a shell starts it again as soon as it has ended, in the same folder, with its checkpoints there. On "
            "the platform the loss is seen and judged, the pod is replaced, and code and checkpoint are staged anew.",
            f"Both are killed {STEPS_BEFORE} steps after the step of their newest checkpoint, which is complete then "
            "(on the platform: stored).",
        ),
        doubts=tuple(doubts),
    )


def on_platform(stack: Stack, notes: Path, texts: int) -> Restart:
    manifest = {
        "name": "bench-recovery",
        "framework": {"name": "pytorch", "version": "2.15"},
        "code": str(CODE),
        "command": "exec python train.py",
        "env": {"BENCH_STEPS": str(notes), "BENCH_TEXTS": str(texts), "OMP_NUM_THREADS": "1"},
        "resources": {"learners": 1, "cpus": 1, "memory": "2GiB"},
        "checkpoints": {"every": f"{CHECKPOINT_SECONDS}s", "keep": {"latest": 2}},
    }
    job = stack.client.submit(manifest, base=CODE)
    try:

        def stored() -> int:
            try:
                return max((c.step or 0 for c in stack.client.checkpoints(job.id).checkpoints), default=0)
            except NotFoundError:  # accepted, and its first task has not recorded it yet
                return 0

        _await_steps(notes, stored)
        restart = _kill_and_watch(_process_of(job.id), notes)
    finally:
        stack.client.cancel(job.id)
        stack.client.wait(job.id, timeout_seconds=PATIENCE_SECONDS)
    return restart


def alone(folder: Path, texts: int) -> Restart:
    """Restart the program by a loop in a shell, as a user without a platform writes it."""
    (folder / "checkpoints").mkdir(parents=True)
    notes = folder / "steps.jsonl"
    loop = subprocess.Popen(
        ["/bin/sh", "-c", 'until "$PYTHON" train.py; do :; done'],
        cwd=CODE,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "PYTHON": str(learner_python()),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "BENCH_STEPS": str(notes),
            "BENCH_TEXTS": str(texts),
            "CHECKPOINT_DIR": str(folder / "checkpoints"),
            "RESULT_DIR": str(folder / "result"),
            "UPDRAFT_METRICS_FILE": str(folder / "metrics.jsonl"),
            "UPDRAFT_CHECKPOINT_SECONDS": str(CHECKPOINT_SECONDS),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def complete() -> int:
        found = (folder / "checkpoints").glob("step-*/COMPLETE")
        return max((int(path.parent.name.rpartition("-")[2]) for path in found), default=0)

    try:
        _await_steps(notes, complete)
        return _kill_and_watch(psutil.Process(loop.pid).children()[0], notes)
    finally:
        os.killpg(loop.pid, signal.SIGKILL)
        loop.wait(timeout=30)


def _await_steps(notes: Path, checkpoint: Callable[[], int]) -> None:
    """Wait until the program is some steps beyond its newest checkpoint, and has two behind it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    first = 0
    while time.monotonic() < deadline:
        saved, steps = checkpoint(), read_steps(notes)
        first = first or saved
        if first and saved > first and steps and steps[-1]["step"] >= saved + STEPS_BEFORE:
            return
        time.sleep(LOOK_SECONDS)
    raise BenchmarkError(f"the program did not come to its second checkpoint in {PATIENCE_SECONDS:.0f} s")


def _kill_and_watch(process: psutil.Process, notes: Path) -> Restart:
    old = process.pid
    killed = time.time()
    process.kill()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        noted = read_steps(notes)
        later = [note for note in noted if note["pid"] != old]
        steps = [note for note in later if note["step"]]
        last = max(note["step"] for note in noted if note["pid"] == old)
        new = [note for note in steps if note["step"] > last]
        if new:
            repeated = last - (steps[0]["step"] - 1)
            return Restart(killed, float(later[0]["t"]), float(steps[0]["t"]), float(new[0]["t"]), repeated)
        time.sleep(LOOK_SECONDS)
    raise BenchmarkError(f"no new step followed the kill within {PATIENCE_SECONDS:.0f} s")


def read_steps(notes: Path) -> list[dict[str, Any]]:
    """Read the steps; a line that is being written is passed over."""
    if not notes.exists():
        return []
    found = []
    for line in notes.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _process_of(job_id: str) -> psutil.Process:
    for process in psutil.process_iter():
        try:
            if process.environ().get("TRAINING_ID") == job_id and "train.py" in process.cmdline():
                return process
        except (psutil.Error, OSError):
            continue
    raise BenchmarkError(f"no program of {job_id} runs")
