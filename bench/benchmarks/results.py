"""What a measurement is, as JSON: comparisons (pairs, their ratio, its budget), single values, and tables.

Written by `cli`, read by `report`. Knows nothing about what was measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FOLDER = Path(__file__).parents[1] / "results"
QUICK = "quick"  # folder below it, of smoke runs: never published, not kept in git


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Budget(Record):
    """A bound that the project has promised."""

    at: Literal["most", "least"]
    value: float

    def met(self, value: float) -> bool:
        return value <= self.value if self.at == "most" else value >= self.value

    def text(self) -> str:
        return f"{'≤' if self.at == 'most' else '≥'} {self.value:g}"


class Comparison(Record):
    """Two things measured in turn, A B A B; the ratio of each pair is A / B."""

    name: str
    unit: str
    a: str
    b: str
    pairs: tuple[tuple[float, float], ...] = Field(min_length=1)
    budget: Budget | None = None

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in self.pairs]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def met(self) -> bool | None:
        return None if self.budget is None else self.budget.met(self.ratio)


class Value(Record):
    """One quantity, measured once or several times; its median counts."""

    name: str
    unit: str
    samples: tuple[float, ...] = Field(min_length=1)
    budget: Budget | None = None

    @property
    def value(self) -> float:
        return statistics.median(self.samples)

    @property
    def met(self) -> bool | None:
        return None if self.budget is None else self.budget.met(self.value)


class TableOf(Record):
    """Rows to be shown as they are; the first column is text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]


class Measured(Record):
    """What one figure's `measure` returns."""

    settings: dict[str, str | float | int | bool | None]
    comparisons: tuple[Comparison, ...] = ()
    values: tuple[Value, ...] = ()
    tables: tuple[TableOf, ...] = ()
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()  # why this run should not be believed, as far as it can tell itself


class Machine(Record):
    system: str
    python: str
    processor: str
    cores: int
    memory_mib: int


class Noise(Record):
    """How quiet the machine was: a fixed piece of work, timed often, and what others used."""

    jitter_before: float  # (90th - 10th percentile) / median of the fixed work
    jitter_after: float
    others_before: float  # cores in use by others, nothing of ours running
    others_after: float


class Result(Record):
    name: str
    title: str
    quick: bool
    at: str  # UTC
    commit: str
    changed: bool  # the checkout differed from the commit
    seconds: float
    machine: Machine
    noise: Noise
    measured: Measured
    tries: int = 1  # how often it was measured; the quietest try is kept

    @property
    def doubts(self) -> tuple[str, ...]:
        return (*noise_doubts(self.noise), *self.measured.doubts)


def quietest(tries: Sequence[Result]) -> Result:
    """Return the try with the fewest doubts, then with the least noise of the machine."""
    best = min(tries, key=lambda result: (len(result.doubts), noise_of(result)))
    return best.model_copy(update={"tries": len(tries)})


def noise_of(result: Result) -> float:
    """Return how much the same piece of work varied on the machine, before or after."""
    return max(result.noise.jitter_before, result.noise.jitter_after)


JITTER_LIMIT = 0.10
OTHERS_LIMIT = 0.15


def noise_doubts(noise: Noise) -> tuple[str, ...]:
    """Return why the machine was too noisy; empty when it was quiet."""
    found = []
    jitter = max(noise.jitter_before, noise.jitter_after)
    others = max(noise.others_before, noise.others_after)
    if jitter > JITTER_LIMIT:
        found.append(f"the machine was noisy: the same piece of work varied by {jitter:.0%} (limit {JITTER_LIMIT:.0%})")
    if others > OTHERS_LIMIT:
        found.append(f"others used {others:.2f} cores beside the measurement (limit {OTHERS_LIMIT:g})")
    return tuple(found)


def spread(samples: Sequence[float]) -> float:
    """Return (largest - smallest) / median: 0 for a single sample."""
    return (max(samples) - min(samples)) / statistics.median(samples)


def path_of(name: str, folder: Path, *, quick: bool) -> Path:
    return (folder / QUICK if quick else folder) / f"{name}.json"


def save(result: Result, folder: Path = FOLDER) -> Path:
    path = path_of(result.name, folder, quick=result.quick)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(result.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return path


def load(name: str, folder: Path = FOLDER, *, quick: bool = False) -> Result | None:
    """Return the figure's result, or None when it has not been measured."""
    path = path_of(name, folder, quick=quick)
    return Result.model_validate_json(path.read_text(encoding="utf-8")) if path.is_file() else None
