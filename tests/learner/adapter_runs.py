"""Run a small training in a process of its own, as a learner does, and kill or stop it. Used by the adapters' tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import updraft_learner

SOURCES = Path(updraft_learner.__file__).parents[1]
SECONDS = 100


@dataclass
class Place:
    """The folders of one job on a node, which outlive its processes."""

    folder: Path
    attempt: int = 0
    variables: dict[str, str] = field(default_factory=dict)

    def start(self, program: str, *, processes: int = 1) -> list[subprocess.Popen[str]]:
        self.attempt += 1
        (self.folder / "result").mkdir(exist_ok=True)
        script = self.folder / "train.py"
        script.write_text(textwrap.dedent(program))
        common = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("UPDRAFT_", "MLFLOW_"))},
            "PYTHONPATH": str(SOURCES),
            "CHECKPOINT_DIR": str(self.folder / "checkpoints"),
            "RESULT_DIR": str(self.folder / "result"),
            "UPDRAFT_METRICS_FILE": str(self.folder / "metrics.jsonl"),
            "UPDRAFT_CHECKPOINT_SECONDS": "0",
            "UPDRAFT_ATTEMPT": str(self.attempt),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **self.variables,
        }
        started = []
        for rank in range(processes):
            ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
            started.append(
                subprocess.Popen(
                    [sys.executable, "-u", str(script)],
                    cwd=self.folder,
                    env={**common, **(ranks if processes > 1 else {})},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        return started

    def run(self, program: str) -> str:
        """Return what a run prints that ends by itself."""
        return ended(self.start(program)[0], 0)

    def killed(self, program: str, at: str) -> str:
        """Kill a run when it prints a line that begins with `at`; return what it printed until then."""
        return self._interrupt(program, at, signal.SIGKILL, -signal.SIGKILL)

    def stopped(self, program: str, at: str) -> str:
        """Ask a run to stop when it prints a line that begins with `at`; return all that it printed."""
        return self._interrupt(program, at, signal.SIGTERM, 75)

    def _interrupt(self, program: str, at: str, number: signal.Signals, code: int) -> str:
        [process] = self.start(program)
        assert process.stdout is not None
        seen = ""
        for line in process.stdout:
            seen += line
            if line.startswith(at):
                process.send_signal(number)
                break
        else:
            raise AssertionError(f"no line begins with {at!r}:\n{seen}")
        return seen + ended(process, code)

    def metrics(self, name: str) -> list[tuple[int, float]]:
        """Return the points of a metric: step and value."""
        lines: list[dict[str, Any]] = [json.loads(line) for line in (self.folder / "metrics.jsonl").open()]
        return [(line["step"], line["metrics"][name]) for line in lines if name in line.get("metrics", {})]

    def checkpoints(self) -> list[str]:
        return sorted(path.parent.name for path in (self.folder / "checkpoints").glob("step-*/COMPLETE"))


def ended(process: subprocess.Popen[str], code: int) -> str:
    printed, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == code, f"exit code {process.returncode}:\n{printed}"
    return printed


def value(printed: str, name: str) -> str:
    """Return what stands behind the last `name: ` that begins a line."""
    [*_, last] = [line.removeprefix(f"{name}: ") for line in printed.splitlines() if line.startswith(f"{name}: ")]
    return last
