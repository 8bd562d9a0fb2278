"""The results of runs: one JSON line each, appended, so that a later run goes on where an earlier one stopped.

Written by `cli`, read by it and by `report`. Which platform a result is of is told by `code`: a digest of everything
that a stack is made of. Another commit of the documentation does not make a result old.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks import machine
from benchmarks.machine import REPOSITORY
from pydantic import BaseModel, ConfigDict

FILE = REPOSITORY / "bench" / "results" / "faults.jsonl"
EVERY = "any_process_kill"
PLATFORM = ("operators", "images", "dags", "plugins", "uv.lock")

Outcome = Literal["passed", "failed", "void"]  # void: the job was over before the fault could meet it


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LossRecord(Record):
    """A learner's process that was followed by another one."""

    repeated: int
    next_step_seconds: float | None  # from its last sign of life to the successor's first step
    caught_up_seconds: float | None  # to the first step that was new


class CurveRecord(Record):
    """Steps over seconds since the first fault, of one process of learner 1: its corners."""

    attempt: int
    points: tuple[tuple[float, int], ...]


class JobRecord(Record):
    id: str
    text: str
    hit: str  # its state when the first fault came
    state: str
    attempts: int  # launches of its training
    seconds: float | None  # from its submission to its end
    late_seconds: float | None = None  # from its first step to the ledger's PROCESSING
    checkpoint_steps: int
    losses: tuple[LossRecord, ...] = ()
    pause_seconds: float = 0.0  # longest time between two steps of one process, from the fault on
    curves: tuple[CurveRecord, ...] = ()


class ViolationRecord(Record):
    kind: str
    job: str
    text: str


class RunRecord(Record):
    """One run: `kind` is one fault's name, or two joined by `+`."""

    kind: str
    seed: int
    scale: float
    outcome: Outcome
    commit: str
    code: str
    changed: bool
    at: str  # UTC
    seconds: float
    moments: dict[str, str]  # kind -> when it came
    healed_seconds: dict[str, float] = {}  # kind -> seconds from the first fault to the end of this one
    jobs: tuple[JobRecord, ...] = ()
    violations: tuple[ViolationRecord, ...] = ()
    notes: dict[str, dict[str, Any]] = {}
    aim: str = ""  # the target's state or task at which the fault was to come
    program: str = "chain"  # what the target ran
    position: int | None = None  # commits up to this one, to tell how old the run is
    place: str = ""  # the process that was killed, of a run of `every`
    bundle: str | None = None  # folder of what a failed run left, below `faults-failed`

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self.kind.split("+"))

    @property
    def command(self) -> str:
        """What does the same again."""
        if self.place:
            return f"make faults SEED={self.seed} AGAIN=1 ARGS=\"--every --place '{self.place}'\""
        scale = "" if self.scale == 1 else f" SCALE={self.scale:g}"
        aim = f" AIM={self.aim} PROGRAM={self.program}" if self.aim else ""
        return f"make faults KINDS={self.kind} SEED={self.seed} RUNS=1 AGAIN=1{aim}{scale}"


@dataclass(frozen=True)
class Provenance:
    """The code that runs are of."""

    commit: str
    code: str
    changed: bool
    position: int | None

    @classmethod
    def of_checkout(cls) -> Provenance:
        commit, changed = machine.commit()
        return cls(commit, code_digest(), changed, position())

    def fields(self) -> dict[str, Any]:
        """As a RunRecord has them."""
        return asdict(self)


def append(path: Path, record: RunRecord) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(record.model_dump_json() + "\n")


def load(path: Path) -> list[RunRecord]:
    """In the order of the file; a line that was torn by a kill of the lab is passed over."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(RunRecord.model_validate_json(line))
        except ValueError:
            continue
    return found


def done(records: Sequence[RunRecord], code: str, scale: float) -> set[tuple[str, int]]:
    """(kind, seed) of the runs that need not be done again."""
    return {
        (r.kind, r.seed) for r in records if r.code == code and r.scale == scale and r.outcome != "void" and not r.place
    }


def killed_places(records: Sequence[RunRecord], code: str) -> set[str]:
    """The processes that were killed one by one at this code."""
    return {r.place for r in records if r.code == code and r.place and r.outcome != "void"}


def tried(records: Sequence[RunRecord]) -> Counter[tuple[str, str]]:
    """How often each kind was aimed at each moment, runs that came too late included."""
    return Counter((record.kind, record.aim) for record in records if record.aim)


def position() -> int | None:
    """How many commits there are up to the present one; None where git does not say."""
    found = _git("rev-list", "--count", "HEAD").strip()
    return int(found) if found.isdigit() else None


def code_digest() -> str:
    """Of the platform's files as git knows them, with what is changed and not committed."""
    trees = _git("rev-parse", *(f"HEAD:{name}" for name in PLATFORM))
    changes = _git("diff", "HEAD", "--", *PLATFORM)
    return hashlib.sha256(f"{trees}\n{changes}".encode()).hexdigest()[:12]


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, errors="replace", timeout=60, check=False
    )
    return done.stdout
