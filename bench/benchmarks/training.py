"""The program of bench/jobs/throughput: its code, and what it says of its speed. Called by the figures that train."""

from __future__ import annotations

import json
import shutil
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import REPOSITORY
from benchmarks.stack import BenchmarkError

CHECKPOINT_SECONDS = 10
FRAMEWORKS: dict[str, dict[str, str]] = {
    "cnn": {"name": "pytorch", "version": "2.15"},
    "transformer": {"name": "pytorch", "version": "2.15"},
    "sklearn": {"name": "sklearn"},
}
IMAGES = {"pytorch": "updraft-learner-pytorch-2-15", "sklearn": "updraft-learner-sklearn-1"}


def program(folder: Path) -> Path:
    """Return the job's code: the benchmark's loop and the example's network."""
    folder.mkdir()
    shutil.copy(REPOSITORY / "bench" / "jobs" / "throughput" / "train.py", folder)
    shutil.copy(REPOSITORY / "jobs" / "digits-cnn" / "digits.py", folder)
    return folder


@dataclass(frozen=True)
class Told:
    """When the program was done with each batch: unix seconds, and its own seconds of CPU time until then."""

    samples: int  # of a batch
    batches: tuple[tuple[float, float], ...]

    @classmethod
    def read(cls, path: Path) -> Told:
        found: dict[str, Any] = json.loads(path.read_text())
        return cls(int(found["samples"]), tuple((float(at), float(cpu)) for at, cpu in found["batches"]))

    def speed(self, warm_up: float, seconds: float) -> float:
        """Return the samples per second in a span that begins after the warm-up. Raises BenchmarkError when the program
        ended before."""
        begin = self.batches[0][0] + warm_up
        first = bisect_left(self.batches, begin, key=lambda batch: batch[0])
        last = bisect_left(self.batches, begin + seconds, key=lambda batch: batch[0]) - 1
        if last <= first or self.batches[-1][0] < begin + seconds:
            raise BenchmarkError(f"the program did not train for {warm_up + seconds:.0f} s")
        return self.samples * (last - first) / (self.batches[last][0] - self.batches[first][0])

    def share(self) -> float:
        """Return the share of its core that the program had."""
        (began, cpu_began), (ended, cpu_ended) = self.batches[0], self.batches[-1]
        return (cpu_ended - cpu_began) / (ended - began)
